"""Decodability by layer and amnesic probing, against plain PyTorch hooks, scikit-learn and the theorem."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from language_data import corpus, language_model, pretrained_tokenizer
from measure import logistic_losses, one_hot

import excise
from excise.errors import ConceptError, ExciseError, InputError
from excise.measuring.classifiers import RIDGE, constant, fit_probe
from excise.text.corpora import read_labelled
from excise.text.tagging import tag


@cache
def tagged(name, split):
    how = {"packed": True, "separator": " ", "max_length": 128} if name == "neox" else {"max_length": 128}
    return tag(read_labelled(corpus(), ["upos"], {"split": split}), pretrained_tokenizer(name), progress=False, **how)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("classes", [2, 4])
def test_probe_is_the_best_linear_one(rng, classes):
    z = rng.integers(0, classes, 900) + 3
    X = rng.standard_normal((900, 6)) + 0.8 * one_hot(z) @ rng.standard_normal((classes, 6))
    X *= [1, 10, 0.1, 1, 1, 1]
    X[:, 5] = X[:, 0] + X[:, 1]  # collinear
    probe = fit_probe(X, z)
    best, trivial, _ = logistic_losses(X[:, :5], z)
    loss, accuracy = probe.scores(X, z)
    assert loss == pytest.approx(best, rel=1e-4)
    assert loss < trivial - 0.05
    # First-order optimality: residuals are uncorrelated with every feature.
    logits = (X - probe.center) @ probe.weights + probe.bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert np.abs((p - one_hot(z)).T @ (X / X.std(0)) / len(z)).max() < 1e-3
    assert accuracy == pytest.approx(((p.argmax(1) + 3) == z).mean())
    assert constant(z)[0] == pytest.approx(trivial)
    assert fit_probe(X, z, RIDGE).scores(X, z)[0] > loss
    with pytest.raises(ConceptError, match="one class only"):
        fit_probe(X, np.zeros(900))


def states_by_hand(model, data):
    """What the fourth attention of the causal model reads, and the labels, by a plain hook."""
    states = []
    handle = model.gpt_neox.layers[3].input_layernorm.register_forward_hook(lambda m, a, out: states.append(out))
    (batch,) = data.batches(len(data))
    with torch.no_grad():
        model(batch["input_ids"], attention_mask=batch["attention_mask"])
    handle.remove()
    keep = (batch["concept"] >= 0) & batch["attention_mask"].bool()
    return states[0][keep].double().numpy(), batch["concept"][keep].numpy()


def test_decodability_before_and_after(tmp_path):
    model, data = language_model("neox"), tagged("neox", "train")[:48]
    held = tagged("neox", "test")[:24]
    scrubber = excise.scrub(model, data.batches(16), progress=False)
    sites = ["gpt_neox.layers.0.post_attention_layernorm", "gpt_neox.layers.3.input_layernorm"]
    found = excise.decodability(model, data.batches(8), scrubber, held.batches(8), sites)
    assert [row.site for row in found.rows] == sites
    assert set(sites) < set(scrubber.erasers)
    labels = data.labels["upos"][data.labels["upos"] >= 0]
    share = np.bincount(labels) / len(labels)
    assert found.tokens == len(labels)
    assert found.constant_loss == pytest.approx(-np.log(share[labels]).mean())
    assert found.majority == pytest.approx(share.max())
    for row in found.rows:
        assert row.loss_before < 0.3 * found.constant_loss  # it was there
        # And is gone, but for the rounding of float32: it fills the direction that a LayerNorm leaves empty, where a
        # classifier of k classes gains about (k - 1) / 2n on its own rows.
        assert row.loss_after == pytest.approx(found.constant_loss, abs=(len(share) - 1) / (2 * found.tokens))
        assert row.accuracy_after == pytest.approx(found.majority)
        assert row.held_accuracy_before > found.held_majority + 0.3
        # New text: less than before, but not nothing. 6,000 tokens tell only so much of 256 features.
        assert row.held_accuracy_after < row.held_accuracy_before - 0.1
    # One site by plain hooks: what the fourth attention reads, before.
    rows, z = states_by_hand(model, data)
    loss, accuracy = fit_probe(rows, z).scores(rows, z)
    assert found.rows[1].loss_before == pytest.approx(loss, rel=1e-2)
    assert found.rows[1].accuracy_before == pytest.approx(accuracy, abs=5e-3)
    # Held out: batches 0 and 2 of eight sequences train, batch 1 measures.
    parts = [states_by_hand(model, held[at : at + 8]) for at in (0, 8, 16)]
    trained = fit_probe(*(np.concatenate([parts[0][i], parts[2][i]]) for i in (0, 1)), RIDGE)
    assert found.rows[1].held_loss_before == pytest.approx(trained.scores(*parts[1])[0], rel=1e-2)
    assert found.held_tokens == len(parts[1][1])
    with pytest.raises(InputError, match="held-out figures need two batches or more"):
        excise.decodability(model, data.batches(8), scrubber, held.batches(24), sites)
    found.to_json(tmp_path / "d.json")
    found.to_csv(tmp_path / "d.csv")
    assert len((tmp_path / "d.csv").read_text(encoding="utf-8").splitlines()) == 3
    assert "| (constant) |" in str(found)
    from excise.reporting.language_models import decodability_picture

    decodability_picture(found, tmp_path / "d.png")
    assert (tmp_path / "d.png").stat().st_size > 10_000


def test_decodability_without_a_scrubber_and_in_several_passes(monkeypatch):
    import excise.measuring.decodability as module

    model, data = language_model("neox"), tagged("neox", "train")[:8]
    whole = excise.decodability(model, data.batches(8), sites="residual", max_tokens=600)
    monkeypatch.setattr(module, "HELD_AT_ONCE", 1)
    one_by_one = excise.decodability(model, data.batches(8), sites="residual", max_tokens=600)
    assert whole == one_by_one
    assert whole.tokens == 600
    assert len(whole.rows) == 4
    assert whole.rows[0].loss_after is None
    assert whole.held_tokens is None
    with pytest.raises(InputError, match="no batches"):
        excise.decodability(model, [])


def test_amnesic_probing_by_hand(tmp_path):
    model = language_model("bert")
    fit, held = tagged("bert", "train")[:100], tagged("bert", "test")[:60]
    found = excise.amnesic(
        model, fit.batches(50), held_out=held.batches(20), layers=[2], options={"inlp": {"rounds": 2}}, progress=False
    )
    rows = {row.method: row for row in found.rows}
    assert list(rows) == ["none", "leace", "inlp", "random"]
    classes = len(np.unique(fit.labels["upos"][fit.labels["upos"] >= 0]))
    assert (rows["none"].rank, rows["leace"].rank, rows["random"].rank) == (0, classes - 1, classes - 1)
    assert rows["inlp"].rank == 2 * classes or rows["inlp"].rank == 2 * (classes - 1)
    # The same by plain means: states of all tokens after block 2, excise.fit on them, a hook, the model's own loss.
    kept, labels = [], []
    with torch.no_grad():
        for batch in fit.batches(50):
            inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            state = model(**inputs, output_hidden_states=True).hidden_states[3]
            kept.append(state[batch["concept"] >= 0].double())
            labels.append(batch["concept"][batch["concept"] >= 0])
    X, z = torch.cat(kept).numpy(), torch.cat(labels).numpy()
    eraser = excise.fit(X, z)

    def erase(module, args, output):
        return (eraser(output[0]), *output[1:]) if isinstance(output, tuple) else eraser(output)

    (batch,) = held.batches(60)
    handle = model.bert.encoder.layer[2].register_forward_hook(erase)
    with torch.no_grad():
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        own = model(**inputs, labels=batch["input_ids"].masked_fill(batch["special"], -100)).loss
    handle.remove()
    assert rows["leace"].unmasked_loss == pytest.approx(float(own), rel=1e-3)
    assert rows["leace"].unmasked_loss > rows["random"].unmasked_loss > rows["none"].unmasked_loss
    # What a linear classifier finds: all of it before, nothing after LEACE, something after two rounds of INLP.
    assert found.fitted_tokens == len(z)
    assert rows["none"].probe_loss < 0.2 * found.constant_loss
    assert rows["leace"].probe_loss == pytest.approx(found.constant_loss, abs=1e-6)
    assert rows["inlp"].probe_loss < 0.9 * found.constant_loss
    assert rows["inlp"].held_probe_accuracy > found.held_majority + 0.1
    assert rows["random"].held_probe_accuracy > 0.7 > rows["leace"].held_probe_accuracy
    assert any("INLP has not reached chance" in note for note in found.notes)
    found.to_json(tmp_path / "a.json")
    found.to_csv(tmp_path / "a.csv")
    assert "| 2 | leace | " in str(found)
    from excise.reporting.language_models import amnesic_picture

    amnesic_picture(found, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_amnesic_refuses_bad_input_before_long_work():
    model, batches = language_model("bert"), tagged("bert", "test")[:4].batches(4)
    for arguments, message in (
        (dict(methods=["lace"]), "method must be one of .*got 'lace'"),
        (dict(methods=["oracle"]), "method 'oracle' cannot be used for amnesic probing"),
        (dict(layers=[4]), r"layers must be numbers from 0 to 3, got \[4\]"),
        (dict(methods=["leace"], options={"inlp": {}}), "options for 'inlp', which is not among the methods leace"),
        (dict(methods=["inlp"], options={"inlp": {"round": 3}}), "inlp has no option 'round'"),
    ):
        with pytest.raises(ExciseError, match=message):
            excise.amnesic(model, batches, **arguments)
    with pytest.raises(InputError, match="no batches"):
        excise.amnesic(model, [])
    with pytest.raises(InputError, match="no language-modelling head"):
        excise.amnesic(model.bert, batches)


def test_random_control_draws_a_fresh_subspace_for_each_batch():
    """Hooks go on and off between batches; two equal batches must still meet two subspaces."""
    model, data = language_model("neox"), tagged("neox", "train")[:16]
    scrubber = excise.scrub(model, data.batches(16), "random", progress=False)
    (batch,) = data[:2].batches(2)
    once = excise.evaluate(model, [batch], scrubber)
    assert excise.evaluate(model, [batch], scrubber).loss == once.loss
    twice = excise.evaluate(model, [batch, batch], scrubber)
    assert twice.loss != pytest.approx(once.loss, rel=1e-5)

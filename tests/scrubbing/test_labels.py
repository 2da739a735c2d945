"""Labels of sequences and tokens in every form, on either side of an encoder-decoder, and for some tokens only."""

from __future__ import annotations

import brute_force
import numpy as np
import pytest
import torch
from architectures import batches, batches_for, build
from measure import correlation, one_hot

import excise

SITE = "model.layers.1.post_attention_layernorm"
QUIET = {"progress": False, "shrinkage": "none"}


def per_sequence(make, number=12):
    """Batches with one label per sequence, and the same labels on every token, as numbers for NumPy."""
    rng = np.random.default_rng(0)
    data = batches(number)
    for batch in data:
        batch["concept"] = make(rng, len(batch["input_ids"]))
    return data


def rows_and_labels(model, data, encode, scrubber=None):
    spread = []
    for batch in data:
        z = encode(batch["concept"])
        spread.append({**batch, "concept": torch.zeros_like(batch["input_ids"])})
        mask = brute_force.counted(spread[-1])
        spread[-1]["z"] = np.repeat(z, batch["input_ids"].shape[1], axis=0)[mask]
    Z = np.concatenate([batch.pop("z") for batch in spread])
    if scrubber is None:
        return brute_force.activations(model, spread, SITE, {}), Z
    with scrubber.attached(model):
        return brute_force.activations(model, spread, SITE, {}), Z


@pytest.mark.parametrize(
    ("make", "encode"),
    [
        (
            lambda rng, B: [("red", "blue")[i] for i in rng.integers(0, 2, B)],
            lambda z: one_hot([*z, "red", "blue"])[:-2],
        ),
        (lambda rng, B: rng.standard_normal(B), lambda z: z[:, None]),
        (lambda rng, B: rng.standard_normal((B, 1, 2)), lambda z: z[:, 0]),
        (lambda rng, B: torch.from_numpy(rng.integers(0, 3, B)), lambda z: np.eye(3)[z.numpy()]),
    ],
    ids=["strings", "numbers", "(B, 1, k)", "integers"],
)
def test_one_label_per_sequence(make, encode):
    model, data = build("llama"), per_sequence(make)
    scrubber = excise.scrub(model, data, **QUIET)
    assert correlation(*rows_and_labels(model, data, encode)) > 0.02
    assert correlation(*rows_and_labels(model, data, encode, scrubber)) < 1e-9


def test_either_side_of_an_encoder_decoder_alone():
    model = build("t5")
    data = batches_for(model)
    for side, other in (("concept", "decoder_concept"), ("decoder_concept", "concept")):
        only = [{name: value for name, value in batch.items() if name != other} for batch in data]
        scrubber = excise.scrub(model, only, **QUIET)
        place = "encoder" if side == "concept" else "decoder"
        assert {path.split(".")[0] for path in scrubber.erasers} == {place}
        path = list(scrubber.erasers)[-1]
        Z = one_hot(brute_force.labels(only, side))
        assert correlation(brute_force.activations(model, only, path, {}, side), Z) > 0.05
        with scrubber.attached(model):
            assert correlation(brute_force.activations(model, only, path, {}, side), Z) < 1e-9


def test_an_encoder_decoder_needs_tokens_for_its_decoder():
    with pytest.raises(excise.InputError, match=r"decoder_input_ids.*get_encoder"):
        excise.scrub(build("t5"), batches(), **QUIET)


def test_embeddings_instead_of_tokens():
    model, data = build("llama"), batches()
    embedded = [
        {
            **{k: v for k, v in b.items() if k != "input_ids"},
            "inputs_embeds": model.get_input_embeddings()(b["input_ids"]).detach(),
        }
        for b in data
    ]
    ours, theirs = excise.scrub(model, embedded, **QUIET), excise.scrub(model, data, **QUIET)
    for path, eraser in theirs.erasers.items():
        assert np.allclose(ours.erasers[path].P, eraser.P, atol=1e-9)


def test_one_label_per_image():
    model = build("vit")
    data = batches_for(model, number=8)
    for batch in data:
        batch["concept"] = batch["concept"][:, 0]
    scrubber = excise.scrub(model, data, **QUIET)
    path = list(scrubber.erasers)[-1]

    def rows():
        spread = [
            {**b, "concept": b["concept"][:, None].expand(-1, 10).contiguous()} for b in data
        ]  # 9 patches and [CLS]
        return brute_force.activations(model, spread, path, {}), one_hot(brute_force.labels(spread))

    assert correlation(*rows()) > 0.1
    with scrubber.attached(model):
        assert correlation(*rows()) < 1e-9


def test_only_labelled_tokens_are_changed():
    model, data = build("llama"), batches()
    scrubber = excise.scrub(model, data, where="labelled", **QUIET)
    first = next(iter(scrubber.erasers))
    kept = torch.from_numpy(brute_force.counted(data[0]))
    found = {}
    hook = model.get_submodule("model.layers.0.self_attn.q_proj").register_forward_pre_hook(
        lambda _, args: found.setdefault("x", args[0].reshape(-1, 16))
    )
    with scrubber.attached(model, concept=data[0]["concept"]):
        brute_force.run(model, data[0])
    erased = found.pop("x")
    brute_force.run(model, data[0])
    hook.remove()
    eraser = scrubber.erasers[first]
    unlabelled = (data[0]["concept"] == -100).reshape(-1)
    assert torch.equal(erased[unlabelled], found["x"][unlabelled])
    assert torch.allclose(erased[kept], torch.from_numpy(eraser(found["x"].numpy()))[kept])
    assert not torch.allclose(erased[kept], found["x"][kept])
    with pytest.raises(excise.ConceptError, match="where='labelled' needs labels"), scrubber.attached(model):
        pass
    with pytest.raises(excise.ExciseError, match="'all' or 'labelled'"):
        excise.scrub(model, data, where="some")

"""The loop, the cache, the scrubber and its controls; bad input, and a model that is always left as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import brute_force
import numpy as np
import pytest
import torch
from architectures import batches, build
from measure import canonical_correlation, correlation, covariance, leace_by_definition, one_hot

import excise
from excise.scrubbing.capture import capture


def same(a, b):
    """Whether two scrubbers are equal to the last bit."""
    return list(a.erasers) == list(b.erasers) and all(
        np.array_equal(np.asarray(getattr(a.erasers[path], name)), np.asarray(getattr(b.erasers[path], name)))
        for path in a.erasers
        for name in ("left", "right", "center")
    )


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + ("forward" in vars(m)) for m in model.modules())


def logits(model, batch):
    with torch.no_grad():
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits


@pytest.fixture(scope="module")
def data():
    return batches()


# ---- the loop


@pytest.mark.parametrize("name", ["llama", "bert", "bloom", "opt post-norm"])
def test_every_cache_gives_the_same_bits(name, data, tmp_path):
    model = build(name)
    first = excise.scrub(model, data, cache="ram")
    for cache in ("auto", "disk", "none"):
        assert same(excise.scrub(model, data, cache=cache), first), cache
    assert same(excise.scrub(model, data, cache="disk", resume=tmp_path / "run"), first)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["erasers", "scrubber.json"]


def test_half_precision_keeps_its_dtype_in_the_cache(data):
    model = build("llama").to(torch.bfloat16)
    ram, disk = excise.scrub(model, data, cache="ram"), excise.scrub(model, data, cache="disk")
    assert same(ram, disk)


def test_clean_fit_for_comparison(data):
    model = build("llama")
    scrubber = excise.scrub(model, data, sequential=False)
    Z = one_hot(brute_force.labels(data))
    for path, eraser in scrubber.erasers.items():
        clean = brute_force.activations(model, data, path, {})
        P, mean = leace_by_definition(clean, Z)
        assert np.allclose(np.asarray(eraser(clean)), (clean - mean) @ P.T + mean, atol=1e-9)
    path = list(scrubber.erasers)[-1]
    with scrubber.attached(model):
        left = correlation(brute_force.activations(model, data, path, {}), Z)
    assert left > 1e-3  # later sites see other states than those they were fitted on


def test_padding_and_ignored_labels_do_not_count(data):
    model = build("llama")
    moved = []
    for batch in data:
        ids, z = batch["input_ids"].clone(), batch["concept"].clone()
        z[batch["attention_mask"] == 0] = 1  # a label on padding
        moved.append({**batch, "input_ids": ids, "concept": z})
    assert same(excise.scrub(model, moved), excise.scrub(model, data))


def test_one_label_per_sequence_and_numbers(data):
    model = build("gpt_neox")
    rows = [{**batch, "concept": torch.arange(5) % 2} for batch in data]
    spread = [{**batch, "concept": (torch.arange(5) % 2)[:, None].expand(5, 20)} for batch in rows]
    assert same(excise.scrub(model, rows), excise.scrub(model, spread))

    numbers = [{**batch, "concept": torch.stack([b := batch["input_ids"] / 7.0, b**2], -1)} for batch in data]
    scrubber = excise.scrub(model, numbers)
    keep = np.concatenate([(batch["attention_mask"] == 1).numpy().reshape(-1) for batch in data])
    Z = np.concatenate([batch["concept"].reshape(-1, 2).numpy() for batch in numbers])[keep]
    for path in scrubber.erasers:
        clean = np.concatenate([capture(model, batch, [path])[path].reshape(-1, 16).numpy() for batch in data])
        with scrubber.attached(model):
            after = np.concatenate([capture(model, batch, [path])[path].reshape(-1, 16).numpy() for batch in data])
        assert correlation(clean[keep], Z) > 0.1
        assert correlation(after[keep], Z) < 1e-6


def test_new_classes_join_and_the_order_of_batches_does_not_matter(data):
    model = build("llama")
    late = [{**data[0], "concept": data[0]["concept"].clamp(max=1)}, *data[1:]]
    a, b = excise.scrub(model, late), excise.scrub(model, late[::-1])
    for path in a.erasers:
        x = np.asarray(capture(model, data[0], [path])[path].reshape(-1, 16))
        assert np.allclose(np.asarray(a.erasers[path](x)), np.asarray(b.erasers[path](x)), atol=1e-8)
        assert a.erasers[path].rank == 2


def test_figures(data):
    model = build("llama")
    scrubber = excise.scrub(model, data)
    Z = one_hot(brute_force.labels(data))
    edits: dict = {}
    for path, figures in scrubber.figures.items():
        eraser = scrubber.erasers[path]
        X = brute_force.activations(model, data, path, edits)
        edits[path] = eraser
        assert figures["rank"] == 2
        assert figures["canonical_correlation"] == pytest.approx(canonical_correlation(X, Z), rel=1e-6)
        assert figures["spectral_norm"] == pytest.approx(np.linalg.norm(np.asarray(eraser.P), 2))
        erased = X - (X - X.mean(0)) @ (np.eye(16) - np.asarray(eraser.P)).T
        assert figures["trace_ratio"] == pytest.approx(erased.var(0).sum() / X.var(0).sum())


# ---- the scrubber


def test_attached_nested_and_off_again_after_an_error(data):
    model = build("llama")
    before = logits(model, data[0])
    scrubber = excise.scrub(model, data)
    assert hooks(model) == 0
    with scrubber.attached(model):
        once = logits(model, data[0])
        with scrubber.attached(model):
            assert torch.allclose(logits(model, data[0]), once, atol=1e-9)  # an eraser twice is the eraser
        assert torch.equal(logits(model, data[0]), once)
    assert not torch.allclose(once, before)
    with pytest.raises(KeyError, match="in the middle"), scrubber.attached(model):
        raise KeyError("in the middle")
    assert hooks(model) == 0
    assert torch.equal(logits(model, data[0]), before)


def test_generate_with_and_without_the_cache_of_keys(data):
    model = build("llama")
    scrubber = excise.scrub(model, data)
    prompt = {"input_ids": data[0]["input_ids"][:1, :6], "attention_mask": data[0]["attention_mask"][:1, :6]}
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    plain = model.generate(**prompt, **settings)
    with scrubber.attached(model):
        quick = model.generate(**prompt, **settings, use_cache=True)
        slow = model.generate(**prompt, **settings, use_cache=False)
    assert torch.equal(quick, slow)
    assert not torch.equal(quick, plain)
    assert torch.equal(model.generate(**prompt, **settings), plain)


@pytest.mark.parametrize("method", ["leace", "oracle", "random"])
def test_saved_and_loaded(method, data, tmp_path):
    model = build("bert")
    scrubber = excise.scrub(model, data, method=method)
    scrubber.save(tmp_path / "s")
    again = excise.load(tmp_path / "s")
    assert list(again.erasers) == list(scrubber.erasers)
    assert again.figures == scrubber.figures
    concept, plain = data[0]["concept"], logits(model, data[0])
    with scrubber.attached(model, concept=concept):
        expected = logits(model, data[0])
    assert not torch.allclose(expected, plain, atol=1e-3)
    with again.attached(model, concept=concept):
        assert torch.equal(logits(model, data[0]), expected)
    with again.attached(model.float(), concept=concept):  # the same model in another dtype
        assert torch.allclose(logits(model, data[0]).double(), expected, atol=1e-3)
    size = sum(path.stat().st_size for path in (tmp_path / "s" / "erasers").iterdir())
    assert size < len(scrubber.erasers) * (16 * (2 * 2 + 1) * 8 + 4000)  # O(l d k)


def test_another_model_is_refused(data, tmp_path):
    scrubber = excise.scrub(build("llama"), data)
    for other, message in [
        (build("bert"), "fitted on a LlamaForCausalLM, got a BertForMaskedLM"),
        (build("llama", seed=1), "other weights"),
    ]:
        with pytest.raises(excise.ExciseError, match=message), scrubber.attached(other):
            pass
        assert hooks(other) == 0
    wider = build("llama")
    wider.config.rope_theta = 77.0
    wider.config.rms_norm_eps = 1e-3
    with pytest.raises(excise.ExciseError, match="another configuration"), scrubber.attached(wider):
        pass


def test_folders_that_are_refused(data, tmp_path):
    scrubber = excise.scrub(build("llama"), data, sites=[0])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(excise.FileFormatError, match="holds other files"):
        scrubber.save(tmp_path / "other")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(excise.FileFormatError, match="is a file"):
        scrubber.save(tmp_path / "file")
    with pytest.raises(excise.FileFormatError, match="no scrubber"):
        excise.load(tmp_path / "other")
    scrubber.save(tmp_path / "s")
    scrubber.save(tmp_path / "s")
    assert same(excise.load(tmp_path / "s"), scrubber)
    (tmp_path / "s" / "erasers" / "0001.safetensors").unlink()
    with pytest.raises(excise.FileFormatError, match="parts missing"):
        excise.load(tmp_path / "s")
    (tmp_path / "s" / "scrubber.json").write_text("{", encoding="utf-8")
    with pytest.raises(excise.FileFormatError, match="damaged"):
        excise.load(tmp_path / "s")


# ---- the controls


def test_sal_and_strength_and_limit(data):
    model = build("llama")
    Z = one_hot(brute_force.labels(data))
    sal = excise.scrub(model, data, method="sal")
    for path in sal.erasers:
        with sal.attached(model):
            assert correlation(brute_force.activations(model, data, path, {}), Z) < 1e-6
        assert np.allclose(np.asarray(sal.erasers[path].P), np.asarray(sal.erasers[path].P).T)
    path = next(iter(sal.erasers))
    clean = brute_force.activations(model, data, path, {})
    half, twice = (excise.scrub(model, data, sites=[0], strength=s) for s in (0.5, 2.0))
    full = covariance(clean, Z)
    for scrubber, share in ((half, 0.5), (twice, -1.0)):
        with scrubber.attached(model):
            left = brute_force.activations(model, data, path, {})
        assert np.allclose(covariance(left, Z), share * full, atol=1e-12)
    limited = excise.scrub(model, data, shrinkage="oas", limit_norm=True)
    assert all(figures["trace_ratio"] <= 1 + 1e-9 for figures in limited.figures.values())


def test_oracle_needs_labels_and_leaves_what_has_none(data):
    model = build("llama")
    scrubber = excise.scrub(model, data, method="oracle")
    with pytest.raises(excise.ConceptError, match="needs labels"), scrubber.attached(model):
        pass
    Z = one_hot(brute_force.labels(data))
    path = next(iter(scrubber.erasers))
    rows = []
    for batch in data:
        with scrubber.attached(model, concept=batch["concept"]):
            rows.append(capture(model, batch, [path])[path].reshape(-1, 16).numpy())
    keep = [brute_force.counted(batch) for batch in data]
    after = np.concatenate([x[k] for x, k in zip(rows, keep, strict=True)])
    assert correlation(brute_force.activations(model, data, path, {}), Z) > 0.1
    assert correlation(after, Z) < 1e-6
    ignored = (data[0]["concept"] == -100).numpy().reshape(-1)
    clean = capture(model, data[0], [path])[path].reshape(-1, 16).numpy()
    assert np.array_equal(rows[0][ignored], clean[ignored])
    assert not np.allclose(rows[0][keep[0]], clean[keep[0]])


def test_random_is_one_fresh_subspace_per_pass_shared_by_all_sites(data):
    model = build("gpt_neox")
    scrubber = excise.scrub(model, data, method="random", seed=5)
    first, last = next(iter(scrubber.erasers)), list(scrubber.erasers)[-1]
    leace = excise.scrub(model, data, sequential=False)
    assert [e.rank for e in scrubber.erasers.values()] == [e.rank for e in leace.erasers.values()]

    def removed(x):  # the projector on what is missing from the rows
        u, s, _ = np.linalg.svd(np.asarray(x).reshape(-1, 16).T)
        return np.eye(16) - u[:, s > 1e-9 * s[0]] @ u[:, s > 1e-9 * s[0]].T

    def passes(number):
        out = []
        with scrubber.attached(model):
            for _ in range(number):
                rows: dict = {}
                edits = {p: lambda x, p=p, rows=rows: rows.setdefault(p, x.detach().clone()) for p in (first, last)}
                with brute_force.editing(model, edits):
                    logits(model, data[0])
                out.append([removed(rows[p]) for p in (first, last)])
        return out

    one, two = passes(2)
    assert np.trace(one[0]) == pytest.approx(2)
    assert np.allclose(one[0], one[1])
    assert np.allclose(two[0], two[1])
    assert not np.allclose(one[0], two[0], atol=0.1)
    again = passes(1)[0]
    assert np.allclose(again[0], one[0])  # seeded
    assert excise.scrub(model, data, method="random", rank=4).erasers[first].rank == 4


@pytest.mark.filterwarnings("ignore::excise.ExciseWarning")
def test_inlp_sees_the_rows_of_the_scrubbed_model(data):
    model = build("llama")
    scrubber = excise.scrub(model, data, method="inlp", sites=[0], rounds=3)
    first, second = scrubber.erasers
    labels = brute_force.labels(data)
    X = brute_force.activations(model, data, first, {})
    expected = excise.inlp(X, labels, rounds=3)
    assert np.allclose(np.asarray(scrubber.erasers[first].P), np.asarray(expected.P))
    Y = brute_force.activations(model, data, second, {first: scrubber.erasers[first]})
    assert not np.allclose(Y, brute_force.activations(model, data, second, {}))
    assert np.allclose(np.asarray(scrubber.erasers[second].P), np.asarray(excise.inlp(Y, labels, rounds=3).P))
    assert scrubber.figures[first]["rank"] >= 2


def test_one_warning_for_all_sites(data):
    with pytest.warns(excise.ExciseWarning, match="other sites: .* rows for 16 features") as caught:
        excise.scrub(build("llama"), data[:1])
    assert len(caught) == 1


# ---- resume


class Interrupted(BaseException):
    pass


class Failing(list):
    """Batches that fail at the k-th reading of a batch."""

    def __init__(self, items, k):
        super().__init__(items)
        self.k = k

    def __iter__(self):
        for item in super().__iter__():
            self.k -= 1
            if self.k == 0:
                raise Interrupted
            yield item


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_stopped_anywhere_and_taken_up_again(name, data, tmp_path):
    model = build(name)
    before = logits(model, data[0])
    whole = excise.scrub(model, data)
    readings = 3 + 3 * 7
    for k in range(1, readings, 2):
        folder = tmp_path / str(k)
        try:
            excise.scrub(model, Failing(data, k), resume=folder)
        except Interrupted:
            assert hooks(model) == 0
            if (folder / "scrubber.json").exists():
                with pytest.raises(excise.FileFormatError, match="unfinished"):
                    excise.load(folder)
        assert same(excise.scrub(model, data, resume=folder), whole), k
        assert same(excise.load(folder), whole)
    assert torch.equal(logits(model, data[0]), before)


def test_killed_and_taken_up_again(data, tmp_path):
    """The real thing: a process that dies without a word in the second block."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
import torch, excise
from architectures import batches, build
torch.set_num_threads(1)
class Deadly(list):
    readings = 0
    def __iter__(self):
        for item in super().__iter__():
            Deadly.readings += 1
            if Deadly.readings == 14:
                os._exit(9)
            yield item
excise.scrub(build("llama"), Deadly(batches()), resume=sys.argv[1])
"""
    folder = tmp_path / "run"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, check=False)
    assert done.returncode == 9
    found = len(list((folder / "erasers").iterdir()))
    assert found == 2
    model = build("llama")
    stamp = (folder / "erasers" / "0000.safetensors").stat().st_mtime_ns
    assert same(excise.scrub(model, data, resume=folder), excise.scrub(model, data))
    assert (folder / "erasers" / "0000.safetensors").stat().st_mtime_ns == stamp  # not fitted again


def test_a_folder_of_another_run_is_refused(data, tmp_path):
    model, folder = build("llama"), tmp_path / "run"
    excise.scrub(model, data, resume=folder, sites=[0])
    for arguments, message in [
        ({"method": "sal", "sites": [0]}, "its method is 'leace', now 'sal'"),
        ({"sites": [1]}, "its sites is"),
        ({"sites": [0], "strength": 0.5}, "its options is"),
    ]:
        with pytest.raises(excise.ExciseError, match=message):
            excise.scrub(model, data, resume=folder, **arguments)
    with pytest.raises(excise.ExciseError, match="its data is"):
        excise.scrub(model, data[:2], resume=folder, sites=[0])
    with pytest.raises(excise.ExciseError, match="other weights"):
        excise.scrub(build("llama", seed=1), data, resume=folder, sites=[0])


# ---- bad input


def changed(batch, **new):
    return {**batch, **new}


def test_bad_batches_are_refused_before_any_work(data, monkeypatch):
    model = build("llama")
    monkeypatch.setattr(type(model), "forward", lambda self, input_ids=None, attention_mask=None: pytest.fail("work"))
    first = data[0]
    for bad, error, message in [
        ((b for b in data), excise.ExciseError, "read only once"),
        (iter(data), excise.ExciseError, "read only once"),
        (first, excise.ExciseError, "iterable of dicts"),
        ([], excise.InputError, "empty"),
        ([[1, 2]], excise.InputError, "must be a dict"),
        ([{"input_ids": first["input_ids"]}], excise.InputError, "no 'concept'"),
        ([changed(first, input_ids=torch.zeros(5, dtype=torch.long))], excise.InputError, r"expected \(B, T\)"),
        ([first, changed(first, concept=first["concept"][:, :-1])], excise.ConceptError, "batch 1: concept has shape"),
        ([changed(first, concept=first["concept"] * 0 - 100)], excise.ConceptError, "all 100 tokens are ignored"),
        ([changed(first, concept=first["concept"] * 0)], excise.ConceptError, "one class only"),
        ([changed(first, concept=first["concept"] * 0.5)], excise.ConceptError, r"\(5, 20, 1\) for numbers"),
        (
            [first, changed(first, concept=first["concept"][..., None] / 3)],
            excise.ConceptError,
            "batch 1: concept is continuous .* before it was categorical",
        ),
        (
            [changed(first, concept=torch.rand(5, 20, k)) for k in (2, 3)],
            excise.ConceptError,
            "3 numeric columns, the concept has 2",
        ),
        ([changed(first, concept=torch.full((5, 20, 1), float("nan")))], excise.ConceptError, "NaN or infinite"),
    ]:
        with pytest.raises(error, match=message):
            excise.scrub(model, bad)


def test_bad_arguments(data):
    model = build("llama")
    for arguments, message in [
        ({"method": "magic"}, "method must be one of"),
        ({"method": "splince"}, "cannot scrub a model"),
        ({"method": "quadratic"}, "cannot scrub a model"),
        ({"method": "sal", "limit_norm": True}, "sal has no option 'limit_norm'"),
        ({"method": "inlp", "y": 1}, "no option 'y'"),
        ({"cache": "tape"}, "cache must be one of"),
        ({"cache": "gpu"}, "the model is on the CPU"),
    ]:
        with pytest.raises(excise.ExciseError, match=message):
            excise.scrub(model, data, **arguments)
        assert hooks(model) == 0


def test_a_cache_that_does_not_fit_is_refused_with_advice(data, monkeypatch):
    from excise.scrubbing import cache

    monkeypatch.setattr(cache, "_free_memory", lambda: 10_000)
    model = build("llama")
    with pytest.raises(excise.ExciseError, match=r"needs 0.00 GB.*pass cache='disk', cache='none'"):
        excise.scrub(model, data, cache="ram")
    assert len(excise.scrub(model, data, cache="auto").erasers) == 4
    usage = type("Usage", (), {"free": 10_000})
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(excise.ExciseError, match="pass cache='none'"):
        excise.scrub(model, data, cache="auto")


def test_batches_that_change_are_noticed(data):
    class Shuffled(list):
        turn = 0

        def __iter__(self):
            self.turn += 1
            return iter(list(self[:]) if self.turn < 4 else self[::-1])

    model = build("llama")
    with pytest.raises(excise.ExciseError, match="same order every time"):
        excise.scrub(model, Shuffled(data))
    assert hooks(model) == 0

    class Shrinking(Shuffled):
        def __iter__(self):
            self.turn += 1
            return iter(self[:] if self.turn < 4 else self[:1])

    with pytest.raises(excise.ExciseError, match="ended after 1"):
        excise.scrub(model, Shrinking(data))


@pytest.mark.parametrize("place", ["model.layers.1.self_attn.o_proj", "model.layers.0.mlp.down_proj"])
def test_nan_names_the_first_site_where_it_appears(place, data):
    model = build("llama")
    with torch.no_grad():
        model.get_submodule(place).weight[0, 0] = float("nan")
    first = {"model.layers.1.self_attn.o_proj": "1.post_attention", "model.layers.0.mlp.down_proj": "1.input"}[place]
    with pytest.raises(excise.InputError, match=f"at model.layers.{first}.*NaN"):
        excise.scrub(model, data)
    assert hooks(model) == 0


def test_the_mode_of_every_module_is_put_back(data):
    model = build("llama").train()
    model.model.layers[0].eval()
    model.config.attention_dropout = 0.5
    modes = [module.training for module in model.modules()]
    whole = excise.scrub(model, data)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(excise.ExciseError):
        excise.scrub(model, data, sites="nothing")
    assert [module.training for module in model.modules()] == modes
    with torch.inference_mode():
        assert same(excise.scrub(model, data), whole)


def test_a_float16_edit_out_of_range_names_its_site(data):
    model = build("llama")
    scrubber = excise.scrub(model, data, sites=[0])
    path = next(iter(scrubber.erasers))
    x = torch.full((1, 1, 16), 6e4, dtype=torch.float16)
    from excise.scrubbing.edits import apply_eraser

    flip = excise.AffineEraser(np.eye(16)[:, :1], -np.eye(16)[:, :1], np.zeros(16))
    with pytest.raises(excise.InputError, match=f"at {path}: the edit leaves the range"):
        apply_eraser(flip, path, x, None)
    x[0, 0, 3] = float("nan")  # padding may be NaN: it stays what it is
    assert torch.isnan(apply_eraser(flip, path, x, None)[0, 0, 3])

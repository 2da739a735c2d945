"""The recipes of docs/shipping.md for other people's tools, where those are installed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exported import DATA, RELATIVE, hooked_logits, logits, relative, scrubbed
from language_data import pretrained_tokenizer
from measure import class_gap

import excise

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

TRUE = DATA[0]["attention_mask"] == 1


def test_nnsight():
    nnsight = pytest.importorskip("nnsight")
    model, scrubber = scrubbed("llama")
    base, hooked = logits(model), hooked_logits(model, scrubber)
    wrapped = nnsight.NNsight(model)
    layers = {path: eraser.as_module() for path, eraser in scrubber.erasers.items()}
    inputs = {"input_ids": DATA[0]["input_ids"], "attention_mask": DATA[0]["attention_mask"]}
    with torch.no_grad(), wrapped.trace(**inputs):
        for path, erase in layers.items():
            site = wrapped.get(path)
            site.output = erase(site.output)
        found = wrapped.output.logits.save()
    assert relative(hooked, base) > 0.1
    assert relative(found[TRUE], hooked) < RELATIVE


def test_transformer_lens(tmp_path):
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    model, scrubber = scrubbed("gpt_neox")
    base, hooked = logits(model), hooked_logits(model, scrubber)
    model.save_pretrained(tmp_path)
    bridge = bridges.TransformerBridge.boot_transformers(
        str(tmp_path), hf_model=model, tokenizer=pretrained_tokenizer("neox")
    )
    norms = {"input_layernorm": "ln1", "post_attention_layernorm": "ln2"}
    hooks = []
    for path, eraser in scrubber.erasers.items():
        _, _, block, norm = path.split(".")
        hooks.append((f"blocks.{block}.{norms[norm]}.hook_out", lambda x, hook, eraser=eraser: eraser(x)))
    with torch.no_grad():
        found = bridge.run_with_hooks(DATA[0]["input_ids"], attention_mask=DATA[0]["attention_mask"], fwd_hooks=hooks)
    assert relative(hooked, base) > 0.1
    assert relative(found[TRUE], hooked) < RELATIVE


@pytest.mark.parametrize("kind", ["flat", "IVF"])
def test_a_faiss_index_rewritten_batch_by_batch(kind, tmp_path):
    """The same numbers in the same order; the concept is in the old index and not in the new one."""
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 1000)
    X = (rng.standard_normal((1000, 8)) + 2 * z[:, None]).astype(np.float32)
    eraser = excise.fit(X, z)
    old = faiss.IndexFlatIP(8)
    if kind == "IVF":
        old = faiss.IndexIVFFlat(old, 8, 4, faiss.METRIC_INNER_PRODUCT)
        old.train(X)
        old.make_direct_map()
    old.add(X)

    new = faiss.IndexFlatIP(old.d)
    for begin in range(0, old.ntotal, 256):
        new.add(eraser(old.reconstruct_n(begin, min(256, old.ntotal - begin))))
    faiss.write_index(new, str(tmp_path / "erased.faiss"))

    stored = faiss.read_index(str(tmp_path / "erased.faiss")).reconstruct_n(0, 1000)
    assert np.array_equal(stored, eraser(X))
    assert class_gap(old.reconstruct_n(0, 1000), z) > 1.5
    assert class_gap(stored, z) < 1e-6
    # A query is erased too: scores are then those of erased vectors on both sides.
    scores, _ = new.search(eraser(X[:1]), 5)
    assert np.allclose(scores[0], np.sort(eraser(X) @ eraser(X[0]))[::-1][:5], atol=1e-4)

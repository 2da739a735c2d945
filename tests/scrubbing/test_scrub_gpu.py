"""Scrubbing on a CUDA device: the same erasers as on the CPU, wherever the states are kept."""

from __future__ import annotations

import numpy as np
import pytest

import excise

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]


def model_and_batches(device: str):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).double().eval().to(device)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 64, (12, 4, 16))
    batches = [{"input_ids": torch.tensor(part), "concept": torch.tensor(part % 3)} for part in ids]
    return model, batches


@pytest.mark.parametrize("cache", ["gpu", "ram", "disk", "none", "auto"])
def test_same_erasers_as_on_the_cpu(cache, tmp_path):
    model, batches = model_and_batches("cpu")
    expected = excise.scrub(model, batches, progress=False, cache="ram")
    there, batches = model_and_batches("cuda")
    found = excise.scrub(there, batches, progress=False, cache=cache, resume=tmp_path / "run")
    assert list(found.erasers) == list(expected.erasers)
    # On what the model computes: in directions that hardly vary in the data, erasers depend on the last digits.
    for batch in batches:
        ids = batch["input_ids"]
        with found.attached(there), torch.no_grad():
            scrubbed = there(ids.cuda()).logits.cpu()
        with expected.attached(model), torch.no_grad():
            own = model(ids).logits
        with torch.no_grad():
            clean = model(ids).logits
        assert (scrubbed - own).abs().max() < 1e-6 * own.abs().max()
        assert (scrubbed - clean).abs().max() > 1e-2 * own.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_runs_in_the_model_dtype(dtype):
    model, batches = model_and_batches("cuda")
    model = model.to(dtype)
    scrubber = excise.scrub(model, batches, progress=False)
    with scrubber.attached(model), torch.no_grad():
        logits = model(batches[0]["input_ids"].cuda()).logits
    assert logits.dtype == dtype
    assert bool(logits.isfinite().all())

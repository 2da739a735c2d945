"""Erasers and scrubbed models in one graph: torch.compile without breaks, torch.export, ONNX."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from exported import DATA, RELATIVE, hooked_logits, is_untouched, logits, relative, scrubbed, state

import excise
from excise.errors import ConceptError, ExciseError
from excise.exporting.graph import insert

# The tools' own, about their insides.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

BATCH = (DATA[0]["input_ids"], DATA[0]["attention_mask"])
TRUE = DATA[0]["attention_mask"] == 1


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def erasers():
    rng = np.random.default_rng(0)
    z = rng.integers(0, 3, 500)
    X = rng.standard_normal((500, 8)) + z[:, None] * rng.standard_normal(8)
    plain = excise.fit(X, z)
    kinds = {
        "plain": plain,
        "emptied": dataclasses.replace(plain, emptied=np.array([2])),
        "normalize": dataclasses.replace(plain, normalize=True),
    }
    return X.astype(np.float32), kinds


def on_onnx(module, inputs, folder):
    """What ONNX Runtime makes of a module."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    with torch.no_grad():
        torch.onnx.export(module, inputs, dynamo=True, verbose=False).save(str(folder / "m.onnx"))
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"))
    given = {slot.name: value.numpy() for slot, value in zip(session.get_inputs(), inputs, strict=True)}
    return torch.from_numpy(session.run(None, given)[0])


@pytest.mark.parametrize("kind", ["plain", "emptied", "normalize"])
def test_an_eraser_as_a_layer_is_one_graph(kind):
    X, kinds = erasers()
    eraser = kinds[kind]
    module, x = eraser.as_module().eval(), torch.from_numpy(X)
    expected = torch.from_numpy(eraser(X))
    assert relative(module(x), expected) < 1e-6
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert relative(compiled(x), expected) < 1e-6
    rows = torch.export.Dim("rows")
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: rows},)).module()
    assert relative(exported(x[:7]), expected[:7]) < 1e-6
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        # Another order of the same operations: two roundings apart.
        assert relative(compiled(x.to(dtype)), module(x.to(dtype))) <= 2 * torch.finfo(dtype).eps
    with torch.autocast("cpu", dtype=torch.bfloat16):  # no digit is lost to it
        assert relative(compiled(x), expected) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "emptied", "normalize"])
def test_an_eraser_in_onnx(kind, tmp_path):
    X, kinds = erasers()
    module = kinds[kind].as_module().eval()
    assert relative(on_onnx(module, (torch.from_numpy(X),), tmp_path), torch.from_numpy(kinds[kind](X))) < 1e-6


class Logits(torch.nn.Module):
    """A tensor out, as exporters like it."""

    def __init__(self, model):
        super().__init__()
        self.model, self.more = model, {} if "Bert" in type(model).__name__ else {"use_cache": False}

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **self.more).logits


@pytest.mark.parametrize("name", ["llama", "bert", "olmo2"])
def test_inserted_layers_do_what_hooks_do(name):
    model, scrubber = scrubbed(name)
    before, base = state(model), logits(model)
    hooked = hooked_logits(model, scrubber)
    with insert(scrubber, model) as layered:
        assert layered is model
        assert relative(hooked, base) > 0.1
        assert relative(logits(model), hooked) < 1e-6
        own = copy.deepcopy(model)
        with pytest.raises(ExciseError, match="holds the layers of a scrubber already"):
            insert(scrubber, model)
    assert is_untouched(model, before)
    assert torch.equal(logits(model), base)
    assert relative(logits(own), hooked) < 1e-6  # a copy keeps its layers
    half = own.to(torch.bfloat16)
    assert all(value.dtype == torch.float64 for key, value in half.state_dict().items() if "eraser" in key)


def test_what_cannot_be_a_layer():
    model, scrubber = scrubbed("llama", dtype=torch.float64)
    before = state(model)
    with pytest.raises(ConceptError, match="needs the label"):
        insert(excise.scrub(model, DATA, "oracle", progress=False), model)
    with pytest.raises(ExciseError, match="RandomEraser, which is no fixed map"):
        insert(excise.scrub(model, DATA, "random", progress=False), model)
    with pytest.raises(ExciseError, match="got a GPTNeoXForCausalLM"):
        insert(scrubber, scrubbed("gpt_neox")[0])
    visits = dataclasses.replace(scrubber, erasers={"model.norm@2": next(iter(scrubber.erasers.values()))})
    with pytest.raises(ExciseError, match="one of several visits"):
        insert(visits, model)
    assert is_untouched(model, before)


def test_a_scrubbed_model_compiles_without_a_break():
    model, scrubber = scrubbed("llama")
    hooked = hooked_logits(model, scrubber)
    with insert(scrubber, model), torch.no_grad():
        compiled = torch.compile(Logits(model), fullgraph=True, backend="eager")
        assert relative(compiled(*BATCH)[TRUE], hooked) < RELATIVE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"), [("bert", "inserted"), ("olmo2", "inserted"), ("llama", "folded"), ("gpt2", "folded")]
)
def test_scrubbed_models_compiled_exported_and_in_onnx(name, form, tmp_path):
    model, scrubber = scrubbed(name, affine=False)
    hooked = hooked_logits(model, scrubber)
    if form == "folded":
        scrubber.fold(model)
    else:
        insert(scrubber, model)
    whole = Logits(model).eval()
    with torch.no_grad():
        found = {
            "compiled": torch.compile(whole, fullgraph=True, backend="inductor")(*BATCH),
            "exported": torch.export.export(whole, BATCH, strict=False).module()(*BATCH),
            "onnx": on_onnx(whole, BATCH, tmp_path),
        }
    for how, out in found.items():
        assert relative(out[TRUE], hooked) < RELATIVE, how

"""Never silently wrong: readers that no site covers are reported, and a stub that loses an output is noticed."""

from __future__ import annotations

import brute_force
import numpy as np
import pytest
import torch
from architectures import batches, build
from measure import correlation, one_hot

import excise
from excise.scrubbing.inputs import model_inputs
from excise.scrubbing.sites import find_sites
from excise.scrubbing.stubs import find_carried


class Gated(torch.nn.Module):
    """A product of two hidden states between norm and reader: no module holds what `reader` multiplies."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.query = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, width)
        self.weight = torch.nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        normed = self.norm(x)
        return x + self.out(self.query(normed).tanh()) + (normed * x) @ self.weight


class Model(torch.nn.Module):
    def __init__(self, block, layers=2, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(48, width)
        self.blocks = torch.nn.ModuleList([block(width) for _ in range(layers)])
        self.double()

    def forward(self, input_ids, attention_mask=None):
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return {"last_hidden_state": x}


def test_a_product_between_norm_and_reader_is_reported():
    model, data = Model(Gated), batches()
    with pytest.warns(excise.ExciseWarning, match=r"(?s)no site covers.*blocks\.0: cannot be measured"):
        scrubber = excise.scrub(model, data, progress=False, shrinkage="none")
    assert {row.reader for row in scrubber.coverage.missed} == {"blocks.0", "blocks.1"}
    erased = {row.reader for row in scrubber.coverage.rows if row.status == "erased"}
    assert erased == {"blocks.0.query", "blocks.1.query"}
    assert "2 missed" in scrubber.coverage.line


def test_a_site_that_was_left_out_by_hand_is_seen_in_the_table():
    model, data = build("llama"), batches()
    sites = [path for path in find_sites(model, data[0]).paths if path != "model.layers.1.input_layernorm"]
    scrubber = excise.scrub(model, data, sites=sites, progress=False, shrinkage="none")
    missed = {row.reader for row in scrubber.coverage.missed}
    assert missed == {f"model.layers.1.self_attn.{name}_proj" for name in "qkv"}
    # Beside an independent measurement: what the query matrix receives, with all erasers attached.
    Z = one_hot(brute_force.labels(data))
    with scrubber.attached(model):
        read = brute_force.activations(model, data, "model.layers.1.self_attn.q_proj:in", {})
        other = brute_force.activations(model, data, "model.layers.0.self_attn.q_proj:in", {})
    row = next(row for row in scrubber.coverage.rows if row.reader == "model.layers.1.self_attn.q_proj")
    assert row.left == pytest.approx(correlation(read, Z), rel=1e-6)
    assert row.left > 0.05
    assert correlation(other, Z) < 1e-9
    assert "sites=" in scrubber.coverage.advice(sites)


def test_coverage_is_saved_and_loaded(tmp_path):
    scrubber = excise.scrub(build("llama"), batches(), progress=False, shrinkage="none")
    scrubber.save(tmp_path / "s")
    assert excise.load(tmp_path / "s").coverage == scrubber.coverage
    assert scrubber.coverage.line in str(scrubber.coverage)
    assert not scrubber.coverage.missed


class Side:
    """What blocks hand on besides their output."""

    def __init__(self):
        self.state = None


class Handing(torch.nn.Module):
    """A block that reads a state which the block before it left elsewhere: a stub loses it."""

    side = Side()

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = (
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, width),
            torch.nn.Linear(width, width),
        )

    def forward(self, x):
        more = 0.0 if self.side.state is None or self.side.state.shape != x.shape else self.side.state
        self.side.state = self.up(self.norm(x)).tanh()
        return x + self.down(self.side.state + more)


class Resetting(Model):
    def forward(self, input_ids, attention_mask=None):
        Handing.side.state = None
        return super().forward(input_ids, attention_mask)


def test_a_stub_that_loses_an_output_is_noticed():
    model, data = Resetting(Handing, layers=3), batches()
    layout = find_sites(model, data[0])
    assert layout.chained
    assert not find_carried(model, layout, model_inputs(model, data[0])).possible
    with pytest.warns(excise.ExciseWarning, match="cache='none'"):
        scrubber = excise.scrub(model, data, progress=False, shrinkage="none")
    expected = brute_force.scrub(model, data, list(scrubber.erasers))
    for path in scrubber.erasers:
        theirs = brute_force.activations(model, data, path, expected)
        with scrubber.attached(model):
            ours = brute_force.activations(model, data, path, {})
        assert np.abs(ours - theirs).max() < 1e-8 * np.abs(theirs).max()
    with pytest.raises(excise.ExciseError, match="cache='ram'"):
        excise.scrub(model, data, cache="ram", progress=False)

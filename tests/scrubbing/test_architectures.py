"""Every architecture, against scrubbing by brute force."""

from __future__ import annotations

import brute_force
import numpy as np
import pytest
import torch
from architectures import TABLE, batches, build
from measure import correlation, one_hot

import excise
from excise.scrubbing.sites import find_sites


def outputs(model, batch):
    with torch.no_grad():
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits


@pytest.mark.parametrize("name", TABLE)
def test_as_by_brute_force(name):
    model, data = build(name), batches()
    before = outputs(model, data[0])
    scrubber = excise.scrub(model, data)
    assert torch.equal(outputs(model, data[0]), before)

    assert sorted(scrubber.erasers) == sorted(TABLE[name][1])
    Z = one_hot(brute_force.labels(data))
    expected = brute_force.scrub(model, data, list(scrubber.erasers))
    for path in scrubber.erasers:
        clean = brute_force.activations(model, data, path, {})
        theirs = brute_force.activations(model, data, path, expected)
        with scrubber.attached(model):
            ours = brute_force.activations(model, data, path, {})
        assert correlation(clean, Z) > 0.1
        assert correlation(ours, Z) < 1e-6, path
        assert np.abs(ours - theirs).max() < 1e-8 * np.abs(theirs).max(), path
    with scrubber.attached(model):
        assert not torch.allclose(outputs(model, data[0]), before, rtol=1e-3)
    assert torch.equal(outputs(model, data[0]), before)


@pytest.mark.parametrize("name", TABLE)
def test_sites_are_those_that_a_reader_of_the_code_would_name(name):
    layout = find_sites(build(name), batches()[0])
    assert sorted(layout.paths) == sorted(TABLE[name][1])
    assert layout.chained
    assert len(layout.blocks) == 2

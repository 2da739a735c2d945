"""Which sites can be asked for, and how they are grouped."""

from __future__ import annotations

import brute_force
import numpy as np
import pytest
import torch
from architectures import batches, build
from measure import correlation, one_hot

import excise
from excise.scrubbing.capture import capture
from excise.scrubbing.sites import find_sites


def paths(name, sites):
    return list(find_sites(build(name), batches()[0], sites).paths)


def test_kinds_of_sites():
    assert paths("llama", "residual") == ["model.layers.0", "model.layers.1"]
    assert paths("llama", "embeddings") == ["model.layers.0:in"]
    assert paths("llama", [1]) == ["model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"]
    assert paths("llama", [-1]) == paths("llama", [1])
    assert paths("llama", "*.mlp") == ["model.layers.0.mlp", "model.layers.1.mlp"]
    assert paths("llama", ["model.norm", "*.0.mlp:in"]) == ["model.layers.0.mlp:in", "model.norm"]
    assert paths("llama", lambda path, module: path.endswith("o_proj")) == [
        "model.layers.0.self_attn.o_proj",
        "model.layers.1.self_attn.o_proj",
    ]
    assert paths("bert", [0]) == [
        "bert.encoder.layer.0.attention.output.LayerNorm",
        "bert.encoder.layer.0.output.LayerNorm",
    ]


def test_parallel_sites_are_of_one_level():
    def levels(name):
        return [len(group.levels) for group in find_sites(build(name), batches()[0]).groups]

    assert levels("gpt_neox") == levels("falcon grouped") == [1, 1]
    assert levels("gpt_neox sequential") == levels("falcon sequential") == [2, 2]


def test_a_masked_beginning_does_not_hide_who_depends_on_whom():
    batch = batches()[0]
    batch = {**batch, "attention_mask": batch["attention_mask"].clone()}
    batch["attention_mask"][:, :17] = 0
    assert [len(group.levels) for group in find_sites(build("llama"), batch).groups] == [2, 2]


@pytest.mark.parametrize(
    "sites",
    ["residual", "embeddings", [1], ["model.norm", "*.mlp"], ["*.self_attn", "*.self_attn:in", "*.0.mlp"]],
    ids=str,
)
@pytest.mark.parametrize("cache", ["ram", "none"])
def test_any_sites_as_by_brute_force(sites, cache):
    model, data = build("llama"), batches()
    scrubber = excise.scrub(model, data, sites=sites, cache=cache)
    expected = brute_force.scrub(model, data, list(scrubber.erasers))
    Z = one_hot(brute_force.labels(data))
    for path in scrubber.erasers:
        theirs = brute_force.activations(model, data, path, expected)
        with scrubber.attached(model):
            ours = brute_force.activations(model, data, path, {})
        assert correlation(brute_force.activations(model, data, path, {}), Z) > 0.1
        assert correlation(ours, Z) < 1e-6
        assert np.abs(ours - theirs).max() < 1e-8 * np.abs(theirs).max()


def test_capture_is_what_the_model_reads():
    model, batch = build("olmo2"), batches()[0]
    sites = ["model.layers.1.mlp:in", "model.layers.0.mlp"]
    found = capture(model, batch, sites)
    assert list(found) == sites
    keep = torch.from_numpy(brute_force.counted(batch))
    for path in sites:
        expected = brute_force.activations(model, [batch], path, {})
        assert found[path].shape == (5, 20, 16)
        assert np.array_equal(found[path].reshape(-1, 16)[keep].numpy(), expected)


def test_refused_sites():
    model, batch = build("llama"), batches()[0]
    for sites, message in [
        ("*.nothing", "no module that runs is called"),
        ([7], "blocks 0 to 1"),
        ([], "empty"),
        ([1.5], "names, or numbers"),
        (lambda path, module: False, "chose no module"),
        ("lm_head:in", None),
    ]:
        if message is None:
            assert find_sites(model, batch, sites).groups[0].block == 2  # after the last block
            continue
        with pytest.raises(excise.ExciseError, match=message):
            find_sites(model, batch, sites)
    with pytest.raises(excise.ExciseError, match="no vector per token"):
        find_sites(build("qwen3"), batch, "*.q_norm")
    with pytest.raises(excise.ExciseError, match=r"model\.layers\.0\.self_attn\.q_proj: Linear"):
        find_sites(model, batch, "*.nothing")  # the tree is shown


def test_refused_models():
    import transformers as t

    batch = batches()[0]
    both = t.T5ForConditionalGeneration(t.T5Config(vocab_size=48, d_model=16, num_layers=2, num_heads=2, d_kv=8))
    with pytest.raises(excise.ExciseError, match="encoder-decoder"):
        find_sites(both, batch)

    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = torch.nn.Embedding(48, 8), torch.nn.Linear(8, 48)

        def forward(self, input_ids, attention_mask=None):
            return self.head(self.embedding(input_ids))

    with pytest.raises(excise.ExciseError, match="no transformer blocks"):
        find_sites(Flat(), batch)


def test_norms_inside_a_sublayer_are_no_sites():
    """A norm before the output projection, and one on a latent of the same width."""

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.out = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
            self.inner_norm = torch.nn.LayerNorm(16)

        def forward(self, x):
            return self.out(self.inner_norm(self.query(x).cumsum(1)))

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.attention = torch.nn.LayerNorm(16), Attention()

        def forward(self, x):
            return x + self.attention(self.norm(x))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(48, 16)
            self.blocks = torch.nn.ModuleList([Block(), Block()])

        def forward(self, input_ids):
            x = self.embedding(input_ids)
            for block in self.blocks:
                x = block(x)
            return x

    assert find_sites(Model(), batches()[0]).paths == ("blocks.0.norm", "blocks.1.norm")

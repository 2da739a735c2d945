"""tag, scrub, evaluate and amnesic, called as a user calls them."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from language_data import corpus, model_folder, pretrained_tokenizer
from transformers import BertConfig, BertModel
from typer.testing import CliRunner

import excise
from excise.cli.app import app
from excise.errors import ConceptError, ExciseError, InputError

runner = CliRunner()


def command(*arguments):
    result = runner.invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tagged text for both models: dev stands for what is fitted on."""
    where = tmp_path_factory.mktemp("commands")
    packed = ["--packed", "--separator", " ", "--max-length", "128"]
    for model, how in (("neox", packed), ("bert", ["--max-length", "128"])):
        for split in ("dev", "test"):
            out = where / f"{model}-{split}"
            command("tag", corpus(), model_folder(model), "-c", "upos", "--where", f"split={split}", *how, "-o", out)
    return where


def test_scrub_then_evaluate_a_causal_model(folder, tmp_path):
    model = model_folder("neox")
    said = command("scrub", model, folder / "neox-dev", "-c", "upos", "--limit", "40", "-o", folder / "leace")
    assert "leace: upos (15 labels) erased at 8 sites, rank 14" in said
    assert "coverage: " in said
    assert "matrices that read hidden states are erased" in said
    scrubber = excise.load(folder / "leace")
    said = command(
        "evaluate", model, folder / "neox-test", "--limit", "16", "-s", folder / "leace", "--control", "random,sal",
        "--fit", folder / "neox-dev", "--fit-limit", "40", "--json", tmp_path / "t.json",
        "--csv", tmp_path / "t.csv", "--markdown", tmp_path / "t.md", "--figure", tmp_path / "t.png",
    )  # fmt: skip
    table = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in table["rows"]}
    assert list(rows) == ["none", "leace", "random", "sal", "unigram"]
    bits = {name: row["bits_per_byte"] for name, row in rows.items()}
    assert bits["none"] < bits["random"] < bits["leace"] < bits["sal"]
    assert rows["leace"]["kl"] > 3 * rows["random"]["kl"] > 0
    # The same by the library.
    from language_data import language_model

    from excise.text.tagged import TaggedText

    own = excise.evaluate(language_model("neox"), TaggedText.load(folder / "neox-test")[:16].batches(16), scrubber)
    assert own.bits_per_byte == pytest.approx(bits["leace"], rel=1e-6)
    with open(tmp_path / "t.csv", encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == list(rows)
    assert f"| leace | {bits['leace']:.3f} ±" in said
    assert f"| leace | {bits['leace']:.3f} ±" in (tmp_path / "t.md").read_text(encoding="utf-8")
    assert (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"


def test_a_scrubber_of_another_model_is_refused(folder, tmp_path):
    neox, site = model_folder("neox"), "gpt_neox.layers.2.input_layernorm"
    command("scrub", neox, folder / "neox-dev", "--sites", site, "--limit", "40", "-o", tmp_path / "one")
    with pytest.raises(ExciseError, match="was fitted on a GPTNeoXForCausalLM, got a BertForMaskedLM"):
        command("evaluate", model_folder("bert"), folder / "bert-test", "-s", tmp_path / "one")


def test_evaluate_by_layer(folder, tmp_path):
    model, data = model_folder("neox"), folder / "neox-dev"
    site = "gpt_neox.layers.2.input_layernorm"
    command("scrub", model, data, "--sites", site, "--limit", "40", "-o", tmp_path / "one")
    said = command(
        "evaluate", model, folder / "neox-test", "--limit", "8", "--batch-size", "4", "-s", tmp_path / "one", "--fit", data, "--fit-limit", "40",
        "--layers", "--json", tmp_path / "t.json", "--figure", tmp_path / "t.png",
    )  # fmt: skip
    layers = json.loads((tmp_path / "t-layers.json").read_text(encoding="utf-8"))
    (row,) = layers["rows"]
    assert row["site"] == site
    assert row["loss_before"] < 0.3 * layers["constant_loss"]
    assert row["loss_after"] == pytest.approx(layers["constant_loss"], abs=14 / (2 * layers["tokens"]))  # float32
    assert "linear classifiers trained on" in said
    assert (tmp_path / "t-layers.png").read_bytes()[:4] == b"\x89PNG"


def test_amnesic_command(folder, tmp_path):
    said = command(
        "amnesic", model_folder("bert"), folder / "bert-dev", folder / "bert-test", "-m", "leace", "-m", "random",
        "--layer", "2", "--fit-limit", "100", "--limit", "40", "--json", tmp_path / "a.json", "--figure", tmp_path / "a.svg",
    )  # fmt: skip
    found = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [(row["layer"], row["method"]) for row in found["rows"]] == [(2, "none"), (2, "leace"), (2, "random")]
    assert found["kind"] == "masked"
    loss = [row["loss"] for row in found["rows"]]
    assert loss[0] < min(loss[1:])  # a trained model is worse without what was erased
    assert "| 2 | leace |" in said
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_bad_input_is_refused_before_long_work(folder, tmp_path):
    neox, bert = model_folder("neox"), model_folder("bert")
    data, other = folder / "neox-test", folder / "bert-test"
    for arguments, error, message in (
        (["scrub", neox, other, "-o", tmp_path / "s"], InputError, "tagged with another tokenizer"),
        (["evaluate", neox, other], InputError, "tagged with another tokenizer"),
        (["amnesic", bert, other, data], InputError, "tagged with another tokenizer"),
        (["scrub", neox, data, "-c", "gender", "-o", tmp_path / "s"], ConceptError, "no concept 'gender'.*has upos"),
        (["scrub", neox, data, "-m", "lace", "-o", tmp_path / "s"], ExciseError, "method must be one of"),
        (["scrub", neox, data, "-o", tmp_path / "no" / "s"], ExciseError, "folder .* does not exist"),
        (["scrub", neox, tmp_path, "-o", tmp_path / "s"], FileNotFoundError, "make one with `excise tag`"),
        (["scrub", "no/model", tmp_path, "-o", tmp_path / "s"], FileNotFoundError, "make one with `excise tag`"),
        (["amnesic", "no/model", tmp_path, tmp_path], FileNotFoundError, "make one with `excise tag`"),
        (["tag", tmp_path / "none.jsonl", "no/model", "-c", "upos", "-o", tmp_path / "t"], ExciseError, "no such file"),
        (["evaluate", neox, data, "--control", "sal"], ExciseError, "need the text to fit on: pass --fit"),
        (["evaluate", neox, data, "--control", "lace"], ExciseError, "method must be one of"),
        (["evaluate", neox, data, "--figure", tmp_path / "x.txt"], ExciseError, "cannot draw"),
        (["evaluate", neox, data, "--json", tmp_path / "no" / "x"], ExciseError, "does not exist"),
        (["evaluate", neox, data, "--limit", "0"], InputError, "this data set is empty"),
        (["evaluate", neox, data, "--dtype", "int8"], ExciseError, "--dtype must be"),
    ):
        with pytest.raises(error, match=message):
            command(*arguments)
    assert not (tmp_path / "s").exists()


def test_a_model_without_a_head_is_refused(folder, tmp_path):
    import shutil

    config = BertConfig(
        vocab_size=len(pretrained_tokenizer("bert")),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertModel(config).save_pretrained(tmp_path / "headless")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model_folder("bert") / name, tmp_path / "headless" / name)
    with pytest.raises(ExciseError, match="saved as BertModel, a model without a language-modelling head"):
        command("evaluate", tmp_path / "headless", folder / "bert-test")


@pytest.mark.parametrize("name", ["tag", "scrub", "evaluate", "amnesic"])
def test_help_teaches(name):
    said = command(name, "--help")
    assert "Examples:" in said
    assert f"excise {name} " in said

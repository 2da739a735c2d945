"""`excise fold`, called as a user calls it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers as t
from commands import excise_command
from language_data import corpus, model_folder

import excise
from excise.errors import ConceptError, ExciseError, FileFormatError


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    t.utils.logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tagged text, and a scrubber of three sites."""
    where = tmp_path_factory.mktemp("fold")
    how = ["--packed", "--separator", " ", "--max-length", "128"]
    excise_command(
        "tag", corpus(), model_folder("neox"), "-c", "upos", "--where", "split=dev", *how, "-o", where / "dev"
    )
    sites = [f"gpt_neox.layers.{n}.input_layernorm" for n in (0, 1, 3)]
    chosen = [part for site in sites for part in ("--sites", site)]
    excise_command("scrub", model_folder("neox"), where / "dev", *chosen, "--limit", "40", "-o", where / "scrubber")
    return where


def outputs(model):
    with torch.no_grad():
        return model(torch.arange(5, 45)[None]).logits


def test_fold_and_lora(folder, tmp_path):
    figures = {"rows": [{"name": "none", "loss": 3.5, "loss_se": 0.1}, {"name": "leace", "loss": 5.25, "kl": 1.5}]}
    (tmp_path / "table.json").write_text(json.dumps(figures), encoding="utf-8")
    card = ["-c", "part of speech", "--data", "made sentences, dev", "--license", "mit"]
    said = excise_command(
        "fold",
        model_folder("neox"),
        folder / "scrubber",
        "-o",
        tmp_path / "model",
        *card,
        "--evaluation",
        tmp_path / "table.json",
    )
    assert "3 sites of GPTNeoXForCausalLM folded into its weights" in said
    said = excise_command(
        "fold", model_folder("neox"), folder / "scrubber", "-o", tmp_path / "adapter", "--lora", *card
    )
    assert "folded into an adapter" in said

    base = t.AutoModelForCausalLM.from_pretrained(model_folder("neox"), dtype=torch.float32).eval()
    plain = outputs(base)
    with excise.load(folder / "scrubber").attached(base):
        hooked = outputs(base)
    folded = t.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert float((hooked - plain).abs().max()) > 0.5
    for found in (outputs(folded), outputs(adapted)):
        assert float((found - hooked).abs().max()) < 1e-5 * float(hooked.abs().max())
    tokenizer = t.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert (
        tokenizer("a dog")["input_ids"] == t.AutoTokenizer.from_pretrained(model_folder("neox"))("a dog")["input_ids"]
    )


def test_the_model_card(folder, tmp_path):
    figures = {"rows": [{"name": "none", "loss": 3.5, "loss_se": 0.1}, {"name": "leace", "loss": 5.25, "kl": 1.5}]}
    (tmp_path / "table.json").write_text(json.dumps(figures), encoding="utf-8")
    more = ["-c", "part of speech", "--data", "made sentences, dev", "--evaluation", tmp_path / "table.json"]
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 300)
    X = rng.standard_normal((300, 4)) + z[:, None]
    report = excise.audit(X, z, eraser=excise.fit(X, z), quick=True)
    report.to_json(tmp_path / "audit.json")
    more += ["--audit", tmp_path / "audit.json"]
    excise_command(
        "fold",
        model_folder("neox"),
        folder / "scrubber",
        "-o",
        tmp_path / "adapter",
        "--lora",
        "--license",
        "mit",
        *more,
    )
    text = (tmp_path / "adapter" / "README.md").read_text(encoding="utf-8")
    scrubber = excise.load(folder / "scrubber")
    from huggingface_hub import ModelCard

    head = ModelCard(text).data.to_dict()  # the hub's own reader
    assert head["library_name"] == "peft"
    assert head["license"] == "mit"
    assert {"concept-erasure", "leace", "excise", "lora"} <= set(head["tags"])
    assert "base_model" not in head  # a folder is no name on the hub
    for part in (
        "# neox without part of speech",
        "| fitted on | made sentences, dev |",
        f"of which {scrubber.about['labelled']:,} labelled",
        f"| fingerprint of the data | {scrubber.about['arguments']['data']} |",
        "| `gpt_neox.layers.3.input_layernorm` | 14 |",
        f"{scrubber.figures['gpt_neox.layers.3.input_layernorm']['canonical_correlation']:.3f}",
        "| leace | 5.250 | 1.500 |",
        "| none | 3.500 ± 0.100 | - |",
        "LoRA adapter of rank 14 (vLLM: `max_lora_rank` of at least 14)",
        "`merge_and_unload()` works",
        "Two active ones add up, and then neither concept is guarded",
        "nonlinear classifiers may find more",
        f"Audit (`excise audit`): guarded.\n\n- {report.verdict[0]}",
    ):
        assert part in text, part


def test_bad_input_is_refused_before_long_work(folder, tmp_path):
    scrubber = folder / "scrubber"
    excise_command("scrub", model_folder("neox"), folder / "dev", "-m", "oracle", "--sites", "gpt_neox.layers.1.input_layernorm", "--limit", "40", "-o", tmp_path / "oracle")  # fmt: skip
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("{}", encoding="utf-8")
    for arguments, error, message in (
        (["no/model", tmp_path / "nothing", "-o", tmp_path / "o"], FileNotFoundError, "nothing"),
        (["no/model", tmp_path / "oracle", "-o", tmp_path / "o"], ConceptError, "needs the label of every token"),
        (["no/model", scrubber, "-o", tmp_path / "no" / "o"], ExciseError, "does not exist"),
        (["no/model", scrubber, "-o", tmp_path / "full"], ExciseError, "is not empty: pass a new folder"),
        (
            ["no/model", scrubber, "-o", tmp_path / "o", "--evaluation", tmp_path / "full" / "x"],
            FileFormatError,
            "evaluate",
        ),
        (
            ["no/model", scrubber, "-o", tmp_path / "o", "--audit", tmp_path / "full" / "x"],
            FileFormatError,
            "excise audit --json",
        ),
        (["no/model", scrubber, "-o", tmp_path / "o"], ExciseError, "cannot load 'no/model'"),
        ([model_folder("bert"), scrubber, "-o", tmp_path / "o"], ExciseError, "got a BertForMaskedLM"),
    ):
        with pytest.raises(error, match=message):
            excise_command("fold", *arguments)
        assert not (tmp_path / "o").exists()


def test_help_teaches():
    said = excise_command("fold", "--help")
    assert "Examples:" in said
    assert "excise fold " in said

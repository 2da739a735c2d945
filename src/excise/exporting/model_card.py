"""The model card of a folded model or an adapter: what was erased, on what data, with what figures, and what it is not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excise import files
from excise.exporting.scrubbed import Scrubber
from excise.tables import markdown, show, write_text

__all__ = ["Facts", "model_card", "write_card"]

NAMED = 40  # classes that a card lists
MEASURED = (
    ("loss", "loss"),
    ("bits_per_byte", "bits per byte"),
    ("accuracy", "accuracy"),
    ("unmasked_accuracy", "accuracy, nothing masked"),
    ("kl", "KL from the clean model"),
)


@dataclass(frozen=True)
class Facts:
    """What a scrubber does not know itself, for its model card."""

    concept: str | None = None  # a name, e.g. "part of speech"
    data: str | None = None  # what text it was fitted on
    base: str | None = None  # name of the model that was scrubbed
    measured: Mapping[str, Any] | None = None  # what `excise evaluate --json` wrote
    license: str | None = None
    audit: Mapping[str, Any] | None = None  # `report.to_dict()`, or what `excise audit --json` wrote


def write_card(
    folder: Path, scrubber: Scrubber, model: Any, facts: Facts, adapter_rank: int | None = None, mergeable: bool = True
) -> None:
    """README.md of a folder that holds a folded model, or an adapter of the given rank."""
    write_text(folder / "README.md", model_card(scrubber, model, facts, adapter_rank, mergeable))


def model_card(
    scrubber: Scrubber, model: Any, facts: Facts, adapter_rank: int | None = None, mergeable: bool = True
) -> str:
    """Markdown with the YAML head that the Hugging Face hub reads."""
    about = scrubber.about
    base = facts.base or getattr(model, "name_or_path", "") or ""
    method = str(about.get("method", "leace"))
    ranks = sorted({eraser.rank for eraser in scrubber.erasers.values()})
    span = f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
    classes = _classes(about.get("concept"))
    affine = all(eraser.info.get("affine", False) for eraser in scrubber.erasers.values())
    parts = [
        _head(base, method, adapter_rank is not None, facts.license),
        f"# {_title(base, scrubber)} without {facts.concept or 'a concept'}\n",
        f"The concept **{facts.concept or 'unnamed'}** was erased with {method.upper()} from what every one of "
        f"{len(scrubber.erasers)} sites of {_quoted(base)} hands to the layers that read it ([excise]"
        f"(https://pypi.org/project/excise/) {files.versions()['excise']}). On the text that it was fitted on, no linear "
        "classifier finds the concept in what these layers receive.\n",
        "## What was erased\n",
        markdown(
            ("", ""),
            [
                ("concept", facts.concept or "unnamed"),
                ("classes", classes),
                ("method", _options(method, about)),
                ("rank of the edit at a site", span),
                ("mean of the states", "kept" if affine else "moves (no bias was needed)"),
                ("fitted on", facts.data or "unnamed text"),
                ("tokens", f"{about.get('tokens', 0):,}, of which {about.get('labelled', 0):,} labelled"),
                ("fingerprint of the data", str(about.get("arguments", {}).get("data", "-"))),
            ],
        ),
        "\n## Figures\n",
        _figures(scrubber),
        *_measured(facts.measured),
        *_audited(facts.audit),
        *_coverage(scrubber),
        "\n## Use\n",
        _use(adapter_rank, mergeable),
        "\n## Limits\n",
        _limits(adapter_rank is not None),
    ]
    return "\n".join(parts)


def _head(base: str, method: str, adapter: bool, license: str | None) -> str:
    lines = [f"library_name: {'peft' if adapter else 'transformers'}"]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", base):
        lines.append(f"base_model: {base}")
    if license:
        lines.append(f"license: {license}")
    lines += ["tags:", "- concept-erasure", f"- {method}", "- excise", *(["- lora"] if adapter else [])]
    return "\n".join(["---", *lines, "---", ""])


def _title(base: str, scrubber: Scrubber) -> str:
    return Path(base).name or str(scrubber.identity.get("model", "a model"))


def _quoted(base: str) -> str:
    return f"`{Path(base).name}`" if base else "the model"


def _classes(concept: Any) -> str:
    blocks: Sequence[Any] = concept.get("blocks", []) if isinstance(concept, Mapping) else []
    names = [str(name) for block in blocks for name in block.get("names") or []]
    if not names:
        return "-"
    more = f" and {len(names) - NAMED} others" if len(names) > NAMED else ""
    return f"{len(names)}: {', '.join(names[:NAMED])}{more}"


def _options(method: str, about: Mapping[str, Any]) -> str:
    options = about.get("arguments", {}).get("options", {})
    return method + "".join(f", {name}={json.dumps(value)}" for name, value in options.items())


def _figures(scrubber: Scrubber) -> str:
    rows = [
        (
            f"`{path}`",
            str(eraser.rank),
            show(scrubber.figures.get(path, {}).get("canonical_correlation")),
            show(scrubber.figures.get(path, {}).get("spectral_norm"), digits=2),
            show(scrubber.figures.get(path, {}).get("trace_ratio")),
        )
        for path, eraser in scrubber.erasers.items()
    ]
    head = ("site", "rank", "canonical correlation before", "spectral norm of the edit", "variance after / before")
    return markdown(head, rows)


def _measured(table: Mapping[str, Any] | None) -> list[str]:
    rows = list((table or {}).get("rows", []))
    shown = [(key, name) for key, name in MEASURED if any(row.get(key) is not None for row in rows)]
    if not shown:
        return []
    lines = [
        (str(row.get("name", "")), *(show(row.get(key), row.get(f"{key}_se")) for key, _ in shown)) for row in rows
    ]
    return ["\nOn held-out text (`excise evaluate`):\n", markdown(("", *(name for _, name in shown)), lines)]


def _audited(report: Mapping[str, Any] | None) -> list[str]:
    if report is None:
        return []
    found = "guarded" if report.get("guarded") else "**not guarded**"
    return [f"\nAudit (`excise audit`): {found}.\n", *(f"- {sentence}" for sentence in report.get("verdict", []))]


def _coverage(scrubber: Scrubber) -> list[str]:
    coverage = getattr(scrubber, "coverage", None)
    return [] if not coverage else ["\nWhat every reader still receives:\n", f"```\n{coverage}\n```"]


def _use(adapter_rank: int | None, mergeable: bool) -> str:
    if adapter_rank is None:
        return (
            "An ordinary checkpoint: `AutoModelForCausalLM.from_pretrained(folder)` (or the class of the base model) loads it; "
            "excise is not needed and it runs as fast as the base model. To go back, load the base model."
        )
    merge = (
        "`merge_and_unload()` works."
        if mergeable
        else "It cannot be merged: some layers of the base model have no bias for the mean that it keeps."
    )
    return (
        f"A LoRA adapter of rank {adapter_rank} (vLLM: `max_lora_rank` of at least {adapter_rank}), scaling 1: "
        "`peft.PeftModel.from_pretrained(base, folder)`. It can be switched off (`disable_adapter()`) and swapped. "
        + merge
    )


def _limits(adapter: bool) -> str:
    lines = [
        "The guarantee is about linear classifiers of what the layers above receive, on the fitting data. On new text about "
        "d / n of the linear information is found again, and nonlinear classifiers may find more.",
        "The states themselves still hold the concept before they are read: a probe on the output of a norm, or on the residual "
        "stream, finds it. Only the layers no longer see it.",
        "The output of the model is not guarded: later layers and the head may compute the concept anew from other features.",
        "Training the model further can bring the concept back.",
    ]
    if adapter:
        lines.append(
            "Use one such adapter at a time. Two active ones add up, and then neither concept is guarded. To erase two concepts, "
            "scrub them jointly and make one adapter."
        )
    return "\n".join(f"- {line}" for line in lines) + "\n"

"""The perplexity table: part of speech erased at every layer, in bits per UTF-8 byte, and what fitting cost."""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import Any

from excise.experiments.language import causal_models, load, pile, red_pajama, small_enough
from excise.experiments.running import Finding, Outcome, Run, paper_options
from excise.methods.table import METHODS
from excise.reporting.svg import COLOURS

__all__ = ["PAPER", "experiment"]

PAPER = (
    "bits per byte, none / random / LEACE / SAL / unigram: LLaMA 7B 0.69 / 0.69 / 1.73 / 3.24 / 2.90, 13B 0.66 / 0.66 / 1.84 / 3.26 / 2.90, "
    "30B 0.62 / 0.62 / 1.96 / 3.16 / 2.90; Pythia 160M 0.90 / 0.99 / 2.79 / 3.53 / 2.66, 1.4B 0.70 / 0.72 / 2.25 / 3.44 / 2.66, "
    "6.9B 0.64 / 0.66 / 3.57 / 4.17 / 2.66, 12B 0.62 / 0.63 / 3.20 / 4.69 / 2.66."
)
PAPER_MODELS = [
    *(f"EleutherAI/pythia-{size}" for size in ("160m", "1.4b", "6.9b", "12b")),
    *(f"huggyllama/llama-{size}" for size in ("7b", "13b", "30b")),
]
ROWS = ("none", "random", "leace", "sal", "leace, not sequential", "inlp")


def experiment(run: Run, options: Any) -> Outcome:
    """pocket-neox and, where its package is installed, SmolLM2-135M on UD EWT where local folders are given."""
    models = causal_models(options, PAPER_MODELS)
    if run.quick:
        models = models[:1]
    rows: list[list[Any]] = []
    findings: list[Finding] = []
    costs, tokens = {}, {}
    for named in models:
        fit, test, held = _sizes(run, options, named.name)
        at = load(run, options, named, (fit, test), red_pajama if "llama" in named.name else pile)
        found = {name: run.step(f"{named.name}: {name}", partial(_measure, at, name, run, held)) for name in ROWS}
        tokens[named.name] = {
            "fitted": at.train.tokens,
            "measured": at.test.tokens,
            "fitted, inlp": small_enough(at.train, held).tokens,
        }
        found["unigram"] = run.step(f"{named.name}: unigram", partial(_unigram, at))
        rows += [
            [named.name, name, f["bits"], f["se"], f["kl"], f["accuracy"], f["seconds"], f["bytes"]]
            for name, f in found.items()
        ]
        costs[named.name] = run.step(f"{named.name}: cost of the cache", partial(_cost, at, run))
        findings += _findings(named.name, found, costs[named.name])
    columns = [
        "model",
        "erased",
        "bits per byte",
        "standard error",
        "KL from clean",
        "accuracy",
        "seconds to fit",
        "bytes stored",
    ]
    return Outcome(
        columns, rows, findings, _draw(rows), (4.5 * len(models) + 2.0, 4.0), {"cost": costs, "tokens": tokens}
    )


def _sizes(run: Run, options: Any, name: str) -> tuple[int, int, int]:
    """Tokens to fit on, to measure on, and to fit INLP on: it holds its rows in memory, and is by far the slowest."""
    if run.quick:
        return 3_000, 2_000, 1_500
    if options.data is None:
        return 2**22, 2**22, 4_000
    return (200_000, 35_000, 4_000) if name == "pocket-neox" else (30_000, 8_000, 1_500)


def _fitted(at: Any, name: str, run: Run, data: Any = None, cache: str = "auto") -> Any:
    from excise.scrubbing.loop import scrub

    method = name.split(",")[0]
    given = {**paper_options(method, run.quick), **({"seed": run.seed} if METHODS[method].seeded else {})}
    batches = (at.train if data is None else data).batches(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return scrub(
            at.model, batches, method, cache=cache, progress=run.show, sequential="not sequential" not in name, **given
        )


def _measure(at: Any, name: str, run: Run, held: int) -> dict[str, Any]:
    from excise.measuring.evaluation import evaluate

    start, scrubber, stored, left = time.perf_counter(), None, 0, None
    if name != "none":
        scrubber = _fitted(at, name, run, small_enough(at.train, held) if name == "inlp" else None)
    seconds = time.perf_counter() - start if scrubber is not None else 0.0
    if scrubber is not None:
        stored = sum(
            int(part.size * part.itemsize)
            for eraser in scrubber.erasers.values()
            for key in ("left", "right", "center")
            if (part := getattr(eraser, key, None)) is not None
        )
        if name in ("leace", "sal", "leace, not sequential"):
            left = _left(at, scrubber)
    found = evaluate(at.model, at.test.batches(8), scrubber, progress=run.show, seed=run.seed)
    return {
        "bits": found.bits_per_byte,
        "se": found.bits_per_byte_se,
        "kl": found.kl,
        "accuracy": found.accuracy,
        "seconds": round(seconds, 2),
        "bytes": stored,
        "left": left,
        "rank": max((e.rank for e in scrubber.erasers.values()), default=0) if scrubber is not None else 0,
    }


def _left(at: Any, scrubber: Any) -> float:
    """The largest correlation with a label that is left at a site on the fitting tokens, over all sites."""
    from excise.moments.moments import Moments
    from excise.scrubbing.capture import capture

    sums = {path: Moments(track_xx=False) for path in scrubber.erasers}
    with scrubber.attached(at.model):
        for batch in at.train.batches(8):
            keep = (batch["concept"] != -100) & (batch["attention_mask"] > 0)
            for path, x in capture(at.model, batch, list(sums)).items():
                sums[path].update(x.cpu()[keep].numpy(), batch["concept"][keep].numpy())
    worst = 0.0
    for m in sums.values():
        size = (m.cov_zz.diagonal() ** 0.5)[None, :] * m.var_x.clip(min=1e-300)[:, None] ** 0.5
        worst = max(worst, float(abs(m.cov_xz / size).max()))
    return worst


def _unigram(at: Any) -> dict[str, Any]:
    from excise.measuring.evaluation import evaluate_each
    from excise.measuring.unigram import Unigram

    baseline = Unigram.fit(at.train.batches(8), at.model.get_input_embeddings().weight.shape[0], "causal")
    row = evaluate_each(at.model, small_enough(at.test, 10**9).batches(8), {}, baseline, "causal", progress=False).rows[
        0
    ]
    return {
        "bits": row.bits_per_byte,
        "se": row.bits_per_byte_se,
        "kl": None,
        "accuracy": row.accuracy,
        "seconds": 0.0,
        "bytes": 0,
        "left": None,
        "rank": 0,
    }


def _cost(at: Any, run: Run) -> dict[str, Any]:
    """Seconds of one plain pass, of fitting with the states cached (O(l)) and of recomputing them (O(l^2)), same tokens."""
    import torch

    data = small_enough(at.train, 1_000 if run.quick else 8_000 if at.train.tokens > 100_000 else 2_000)
    with torch.no_grad():
        start = time.perf_counter()
        for batch in data.batches(8):
            at.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        plain = time.perf_counter() - start
    out: dict[str, Any] = {"plain_pass": plain}
    for cache in ("ram", "none"):
        scrubber = _fitted(at, "leace", run, data, cache)
        out[cache] = scrubber.about["seconds"]["passes"]
    out["blocks"] = scrubber.about["blocks"]
    return out


def _findings(name: str, found: dict[str, Any], cost: dict[str, Any]) -> list[Finding]:
    bits = {row: f["bits"] for row, f in found.items()}
    order = [bits["none"], bits["random"], bits["leace"], bits["sal"]]
    return [
        Finding(
            f"{name}: LEACE leaves no correlation at any site on the fitting tokens",
            found["leace"]["left"] < 1e-5,
            theorem=True,
            note=f"{found['leace']['left']:.1e}",
        ),
        Finding(
            f"{name}: none <= random < LEACE < SAL",
            order[0] <= order[1] < order[2] < order[3],
            note=" / ".join(f"{b:.3f}" for b in order),
        ),
        Finding(
            f"{name}: erasers fitted on the clean model, not in sequence, leave the concept at some site",
            found["leace, not sequential"]["left"] > 0.01,
            note=f"correlation {found['leace, not sequential']['left']:.2g}; bits per byte {bits['leace, not sequential']:.3f} against {bits['leace']:.3f}",
        ),
        Finding(
            f"{name}: INLP at every layer hurts more than LEACE",
            bits["inlp"] > bits["leace"],
            note=f"{bits['inlp']:.3f} against {bits['leace']:.3f}",
        ),
        Finding(
            f"{name}: caching is cheaper than recomputing",
            cost["ram"] < cost["none"],
            note=f"{cost['ram'] / cost['plain_pass']:.1f} against {cost['none'] / cost['plain_pass']:.1f} plain passes, {cost['blocks']} blocks",
        ),
    ]


def _draw(rows: list[list[Any]]) -> Any:
    def draw(figure: Any) -> None:
        models = list(dict.fromkeys(row[0] for row in rows))
        axes = figure.subplots(1, len(models), squeeze=False)[0]
        for axis, name in zip(axes, models, strict=True):
            own = [row for row in rows if row[0] == name][::-1]
            axis.barh(
                [row[1] for row in own],
                [row[2] for row in own],
                xerr=[row[3] or 0 for row in own],
                color=COLOURS[0],
                capsize=3,
            )
            for i, row in enumerate(own):
                axis.annotate(f"  {row[2]:.2f}", (row[2] + (row[3] or 0), i), va="center", fontsize=8)
            axis.set(title=name, xlabel="bits per byte", xlim=(0, 1.2 * max(row[2] for row in own)))

    return draw

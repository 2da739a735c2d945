"""Amnesic probing: part of speech erased at one layer at a time of a masked language model, on unmasked inputs."""

from __future__ import annotations

from functools import partial
from typing import Any

from excise.experiments.language import load, masked_model, universal_dependencies
from excise.experiments.running import Finding, Outcome, Run, paper_options
from excise.reporting.svg import COLOURS, LINES, MARKERS

__all__ = ["PAPER", "experiment"]

PAPER = (
    "bert-base-uncased on English UD: LEACE (rank 17) changes loss and accuracy mildly until layer 8 of 12, most at layer 11; INLP (20 rounds, "
    "rank 360, above majority still) most at layer 6."
)
PAPER_MODEL = "bert-base-uncased"
METHODS = ("leace", "inlp", "random")


def experiment(run: Run, options: Any) -> Outcome:
    """pocket-bert on UD EWT where local folders are given."""
    named = masked_model(options, PAPER_MODEL)
    sizes = (1_500, 1_500) if run.quick else (6_000, 6_000) if options.data else (250_000, 30_000)
    at = load(run, options, named, sizes, universal_dependencies)
    found = run.step(named.name, partial(_measure, at, run))
    layers = sorted({row["layer"] for row in found["rows"]})
    clean = [row for row in found["rows"] if row["method"] == "none"]
    by = {(row["layer"], row["method"]): row for row in found["rows"]}
    rows = [
        [
            row["layer"],
            row["method"],
            row["rank"],
            row["unmasked_loss"],
            row["unmasked_accuracy"],
            row["probe_loss"],
            row["probe_accuracy"],
            row["held_probe_loss"],
            row["held_probe_accuracy"],
        ]
        for row in found["rows"]
    ]
    peak = {m: max(layers, key=lambda layer: by[layer, m]["unmasked_loss"]) for m in METHODS}
    worst = max(by[layer, "leace"]["probe_loss"] - found["constant_loss"] for layer in layers)
    least = min(by[layer, "leace"]["probe_loss"] - found["constant_loss"] for layer in layers)
    findings = [
        Finding(
            "after LEACE the best linear loss for part of speech is the constant's on the fitting tokens",
            abs(worst) < 1e-3 and abs(least) < 1e-3,
            theorem=True,
            note=f"differences {least:.1e} to {worst:.1e} nats",
        ),
        Finding(
            "part of speech was there before, at every layer",
            all(row["probe_loss"] < found["constant_loss"] - 0.5 for row in clean),
        ),
        Finding(
            "random erasure of the same rank hurts less than LEACE at every layer",
            all(by[layer, "random"]["unmasked_loss"] <= by[layer, "leace"]["unmasked_loss"] for layer in layers),
        ),
        Finding(
            "INLP hurts more than LEACE at every layer",
            all(by[layer, "inlp"]["unmasked_loss"] >= by[layer, "leace"]["unmasked_loss"] for layer in layers),
        ),
        Finding(
            "INLP peaks at another layer than LEACE",
            peak["inlp"] != peak["leace"],
            note=f"LEACE at {peak['leace']}, INLP at {peak['inlp']}",
        ),
        Finding(
            "INLP's rounds leave something for a linear probe",
            any(by[layer, "inlp"]["probe_loss"] < found["constant_loss"] - 1e-3 for layer in layers),
            note=f"down to {min(by[layer, 'inlp']['probe_loss'] for layer in layers):.3f} against {found['constant_loss']:.3f}",
        ),
    ]
    columns = [
        "layer",
        "method",
        "rank",
        "loss",
        "accuracy",
        "probe loss",
        "probe accuracy",
        "held-out probe loss",
        "held-out probe accuracy",
    ]
    return Outcome(
        columns,
        rows,
        findings,
        _draw(found, layers),
        (11.0, 3.8),
        {"constant_loss": found["constant_loss"], "model": named.name},
    )


def _measure(at: Any, run: Run) -> dict[str, Any]:
    import warnings

    from excise.measuring.amnesic import amnesic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, Any] = amnesic(
            at.model,
            at.train.batches(16),
            METHODS,
            held_out=at.test.batches(16),
            options={method: paper_options(method, run.quick) for method in METHODS},
            seed=run.seed,
            progress=run.show,
        ).to_dict()
    return found


def _draw(found: dict[str, Any], layers: list[int]) -> Any:
    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 3)
        for axis, (key, title) in zip(
            axes,
            (
                ("unmasked_accuracy", "accuracy of the model"),
                ("unmasked_loss", "loss of the model (nats)"),
                ("probe_loss", "best linear loss for part of speech"),
            ),
            strict=True,
        ):
            for i, method in enumerate(("none", *METHODS)):
                values = {row["layer"]: row[key] for row in found["rows"] if row["method"] == method}
                shown = [values.get(layer, next(iter(values.values()))) for layer in layers]
                axis.plot(layers, shown, marker=MARKERS[i], linestyle=LINES[i], color=COLOURS[i], label=method)
            axis.set(title=title, xlabel="layer", xticks=layers)
        axes[2].axhline(found["constant_loss"], color="black", linestyle=":", label="constant")
        axes[2].legend(frameon=False, fontsize=8)

    return draw

"""Pictures of what scrubbing did: loss by intervention, and figures by layer."""

from __future__ import annotations

import os
from typing import Any

from excise.measuring.amnesic import Amnesic
from excise.measuring.decodability import Decodability
from excise.measuring.figures import EvaluationTable

__all__ = ["amnesic_picture", "decodability_picture", "evaluation_picture"]

MARKERS = "osD^vP*X"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def evaluation_picture(table: EvaluationTable, path: str | os.PathLike[str]) -> None:
    """A bar per intervention: bits per byte of a causal model, loss of a masked one; whiskers are one standard error."""
    plt = _pyplot()
    name = "bits_per_byte" if table.rows[0].bits_per_byte is not None else "loss"
    values = [getattr(row, name) for row in table.rows]
    errors = [getattr(row, f"{name}_se") or 0.0 for row in table.rows]
    fig, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    bars = axis.bar([row.name for row in table.rows], values, yerr=errors, capsize=4, color="#0072B2")
    axis.bar_label(bars, fmt="%.2f", padding=3)
    axis.set_ylabel("bits per UTF-8 byte" if name == "bits_per_byte" else "loss (nats per masked token)")
    axis.set_title(f"{table.rows[0].tokens:,} predicted tokens, {table.rows[0].sequences:,} sequences")
    fig.savefig(path, dpi=130)
    plt.close(fig)


def decodability_picture(found: Decodability, path: str | os.PathLike[str]) -> None:
    """Loss of linear classifiers for the concept by site, before and after; the constant's loss is the ceiling."""
    plt = _pyplot()
    fig, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
    shown = {
        "loss_before": "before, fitted",
        "held_loss_before": "before, held out",
        "loss_after": "after, fitted",
        "held_loss_after": "after, held out",
    }
    for (name, label), marker in zip(shown.items(), MARKERS, strict=False):
        values = [getattr(row, name) for row in found.rows]
        if None not in values:
            style = "--" if name.startswith("held") else "-"
            axis.plot(values, style, marker=marker, label=label)
    axis.axhline(found.constant_loss, color="black", linestyle=":", label="constant")
    axis.set_xticks(range(len(found.rows)), [row.site for row in found.rows], rotation=70, ha="right", fontsize=7)
    axis.set_ylabel("loss of a linear classifier\nfor the concept (nats)")
    axis.legend(frameon=False, fontsize=9)
    fig.savefig(path, dpi=130)
    plt.close(fig)


def amnesic_picture(found: Amnesic, path: str | os.PathLike[str]) -> None:
    """By layer, for each method: what the model loses, how often it is right, and what a classifier still finds."""
    plt = _pyplot()
    masked = found.kind == "masked"
    held = found.held_majority is not None
    panels = [
        ("unmasked_loss" if masked else "loss", "loss of the model (nats)" + (", nothing masked" if masked else "")),
        (
            "unmasked_accuracy" if masked else "accuracy",
            "accuracy of the model" + (", nothing masked" if masked else ""),
        ),
        ("held_probe_accuracy" if held else "probe_accuracy", "accuracy of a linear classifier for the concept"),
    ]
    fig, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    for axis, (name, title) in zip(axes, panels, strict=True):
        for method, marker in zip(dict.fromkeys(row.method for row in found.rows), MARKERS, strict=False):
            rows = [row for row in found.rows if row.method == method]
            errors = [getattr(row, f"{name}_se", None) or 0.0 for row in rows]
            style = ":" if method == "none" else "-"
            values = [getattr(row, name) for row in rows]
            axis.errorbar([row.layer for row in rows], values, errors, linestyle=style, marker=marker, label=method)
        axis.set(title=title, xlabel="layer")
    axes[2].axhline(found.held_majority if held else found.majority, color="black", linestyle="--", label="majority")
    axes[2].legend(frameon=False, fontsize=9)
    fig.savefig(path, dpi=130)
    plt.close(fig)

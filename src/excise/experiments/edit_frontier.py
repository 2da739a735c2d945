"""What is left of the concept against the size of the edit, for every method and several of its ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from excise.auditing.audit_data import erased_rows, read_audit_data
from excise.auditing.comparison import Measure, run_method, split_rows
from excise.auditing.guardedness import gather_evidence, guardedness
from excise.errors import ExciseError
from excise.experiments import sources
from excise.experiments.running import Finding, Outcome, Run, paper_options
from excise.fitting import fit
from excise.reporting.svg import COLOURS, MARKERS

__all__ = ["PAPER", "experiment"]

GUARDING = ("leace", "sal", "oracle")
PAPER = "Figure: BERT on biographies, gender. LEACE alone reaches chance with a small edit; RLACE comes close, INLP does not; LEACE is about 100 times faster."


def experiment(run: Run, options: Any) -> Outcome:
    """Biographies by hub name, or word2vec, BOLD and the wiki passages from a local folder."""
    sets, encoder, pool = sources.labelled_sets(run, options, [sources.word2vec, sources.bold, sources.wiki])
    rows, findings, theorems = [], [], {}
    for data in sets:
        X = np.asarray(sources.embed(run, data, encoder, pool), dtype=np.float32)
        codes = (data.concept == np.unique(data.concept)[1]).astype(int)
        fitted, train, test = split_rows(codes, data.groups, run.seed)
        measure = Measure(X, codes, None, fitted, train, test, run.seed)
        share = np.bincount(codes[train]) / len(train)
        constant = float(-np.log(share[codes[test]]).mean())
        majority = float((codes[test] == np.argmax(share)).mean())
        own = []
        for name, method, given in _ladder(run.quick):
            edit, loss, accuracy, left, seconds = run.step(
                f"{data.name}: {name}", partial(_measure, measure, method, given)
            )
            own.append([data.name, name, edit, loss, constant, accuracy, majority, left, seconds])
        rows += own
        theorems[data.name] = run.step(
            f"{data.name}: on the erasers' own rows", partial(_own_rows, X[fitted], codes[fitted], run.seed)
        )
        findings += [*_theorems(data.name, theorems[data.name]), *_findings(data.name, own)]
    columns = [
        "data",
        "method",
        "edit (of variance)",
        "linear loss",
        "constant's loss",
        "accuracy",
        "majority",
        "left on fit",
        "seconds",
    ]
    return Outcome(columns, rows, findings, _draw(rows), (4.2 * len(sets) + 1.2, 7.2), {"own rows": theorems})


def _ladder(quick: bool) -> list[tuple[str, str | None, dict[str, Any]]]:
    rounds, ranks, steps = ((1, 5), (1,), 300) if quick else ((1, 5, 10, 20), (1, 4, 16), 6000)
    out: list[tuple[str, str | None, dict[str, Any]]] = [("none", None, {})]
    out += [(name, name, paper_options(name)) for name in ("leace", "sal", "oracle", "random")]
    out += [(f"inlp, {n} rounds", "inlp", {"rounds": n}) for n in rounds]
    return out + [(f"rlace, rank {n}", "rlace", {"rank": n, "steps": steps}) for n in ranks]


def _measure(measure: Measure, method: str | None, given: dict[str, Any]) -> list[float]:
    found = measure("none", None, 0.0) if method is None else run_method(method, measure, given)
    if found.linear_loss is None:
        raise ExciseError(f"{method} {given}: {found.note}")
    nats = found.linear_loss * float(np.log(2.0))  # the paper's unit
    figures = (found.edit, nats, found.linear_accuracy, found.fitted_correlation, found.seconds)
    return [float(figure or 0.0) for figure in figures]


def _own_rows(X: Any, codes: Any, seed: int) -> dict[str, Any]:
    """What the theorem is about: nothing left for a linear model, and at which edit."""
    out = {}
    variance = float(X.astype(np.float64).var(axis=0).sum())
    for method in GUARDING:
        eraser = fit(X, codes, method, **paper_options(method))
        data = read_audit_data(X, codes, eraser, None, None)
        found = guardedness(data, gather_evidence(data, False, seed))
        edit = np.mean(np.sum((erased_rows(eraser, X, codes).astype(np.float64) - X) ** 2, axis=1))
        out[method] = {"guarded": found.guarded, "bits": found.v_information, "edit": float(edit) / variance}
    return out


def _theorems(name: str, own: dict[str, Any]) -> list[Finding]:
    edits = [own[method]["edit"] for method in ("oracle", "leace", "sal")]
    return [
        Finding(
            f"{name}: on the rows that LEACE, SAL and the oracle were fitted on, no linear model is better than the constant",
            all(found["guarded"] for found in own.values()),
            theorem=True,
            note=f"logistic regression gains at most {max(found['bits'] for found in own.values()):.1e} bits",
        ),
        Finding(
            f"{name}: there LEACE's edit is the smaller of the two affine ones, and the oracle's is smaller still",
            edits[0] <= edits[1] * (1 + 1e-6) and edits[1] <= edits[2] * (1 + 1e-6),
            theorem=True,
            note=" / ".join(f"{edit:.5f}" for edit in edits) + " of the variance (oracle / LEACE / SAL)",
        ),
    ]


def _findings(name: str, rows: list[list[Any]]) -> list[Finding]:
    by = {row[1]: row for row in rows}
    none, leace = by["none"], by["leace"]
    rlace = [row for row in rows if row[1].startswith("rlace")]
    inlp = [row for row in rows if row[1].startswith("inlp")]
    return [
        Finding(f"{name}: the concept was there before", none[3] < none[4] - 0.05),
        Finding(
            f"{name}: after LEACE the held-out loss is at least the constant's",
            leace[3] >= leace[4],
            note=f"{leace[3]:.4f} against {leace[4]:.4f}",
        ),
        Finding(
            f"{name}: INLP does not reach LEACE's held-out loss at any number of rounds",
            max(row[3] for row in inlp) < leace[3],
            note=f"best {max(row[3] for row in inlp):.4f} against {leace[3]:.4f}",
        ),
        Finding(
            f"{name}: LEACE is at least 50 times faster than RLACE",
            min(row[8] for row in rlace) > 50 * leace[8],
            note=f"{min(row[8] for row in rlace) / max(leace[8], 1e-9):.0f} times",
        ),
    ]


# What is drawn against the edit: label, column of the figure, name and column of the reference. The paper has the second.
MEASURES = (
    ("held-out loss of a linear probe (nats)", 3, "constant", 4),
    ("held-out accuracy of a linear probe", 5, "majority", 6),
)


def _draw(rows: list[list[Any]]) -> Any:
    def draw(figure: Any) -> None:
        sets = list(dict.fromkeys(row[0] for row in rows))
        axes = figure.subplots(len(MEASURES), len(sets), squeeze=False, sharex="col")
        for line, measure in zip(axes, MEASURES, strict=True):
            for axis, name in zip(line, sets, strict=True):
                _draw_measure(axis, [row for row in rows if row[0] == name], *measure[1:])
            line[0].set_ylabel(measure[0])
        for axis, name in zip(axes[0], sets, strict=True):
            axis.set_title(name)
        for axis in axes[-1]:
            axis.set_xlabel("mean squared edit (% of variance)")
        handles, labels = axes[0][0].get_legend_handles_labels()
        labels = ["constant / majority" if label == "constant" else label for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False, fontsize=8)

    return draw


def _draw_measure(axis: Any, rows: list[list[Any]], column: int, reference: str, at: int) -> None:
    for i, family in enumerate(dict.fromkeys(row[1].split(",")[0] for row in rows)):
        own = [row for row in rows if row[1].split(",")[0] == family]
        axis.plot(
            [100 * row[2] for row in own],
            [row[column] for row in own],
            marker=(MARKERS + "X*")[i % 8],
            linestyle="-" if len(own) > 1 else "",
            color=(*COLOURS, "0.4", "black")[i % 8],
            label=family,
            zorder=4 if family == "leace" else 3,
        )
    axis.axhline(rows[0][at], color="black", linestyle=":", label=reference)
    axis.set_xscale("symlog")
    axis.set_xlim(-0.5, 130 * max(row[2] for row in rows))

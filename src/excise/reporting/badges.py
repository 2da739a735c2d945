"""The head of a report: three answers side by side, so that none of them is read alone."""

from __future__ import annotations

from dataclasses import dataclass

from excise.auditing.report import Report

__all__ = ["Badge", "badges"]


@dataclass(frozen=True)
class Badge:
    question: str
    answer: str
    detail: str
    tone: str  # "good", "bad" or "" for neither


def badges(report: Report) -> list[Badge]:
    return [_linear(report), _nonlinear(report), _cost(report)]


def _linear(report: Report) -> Badge:
    question = "Can a linear model find the concept?"
    if report.guardedness.nothing_left:
        return Badge(question, "Nothing is left", "all features are constant after the edit", "bad")
    if report.guarded:
        return Badge(question, "✓ Guarded", "no, on these rows, to rounding", "good")
    found = report.guardedness.v_information
    detail = "yes, on these rows" if found is None else f"yes: {found:.3g} bits per row"
    return Badge(question, "✗ Not guarded", detail, "bad")


def _nonlinear(report: Report) -> Badge:
    question = "What do nonlinear models find?"
    tried = [p for p in report.probes if not p.linear]
    if not tried:
        return Badge(question, "Not measured", report.absent.get("probes", "no probe was run"), "")
    best = max(tried, key=lambda p: p.information)
    unit = "bits" if best.loss is not None else "of the variance"
    was = f"{best.name}; {best.information_before:.3g} before" if report.cost is not None else best.name
    if any(p.writes for p in report.probes):
        return Badge(question, "▲ More than before", f"{best.information:.3g} {unit} ({was})", "bad")
    if best.interval[0] <= 0:
        return Badge(question, "Nothing", f"none of {len(tried)} probes, on test rows", "good")
    return Badge(question, f"{best.information:.3g} {unit}", was, "bad")


def _cost(report: Report) -> Badge:
    question = "What did it cost?"
    if report.cost is None:
        return Badge(question, "No edit", "these rows were audited as they are", "")
    moved = f"{100 * report.cost.relative:.2g}% of the variance moved"
    if report.fairness is None:
        return Badge(question, moved, "the task was not given (y), so its accuracy is not known", "")
    before, after = report.fairness.before.accuracy, report.fairness.refitted.accuracy
    return Badge(question, f"{after - before:+.3f} task accuracy", f"{before:.3f} to {after:.3f}; {moved}", "")

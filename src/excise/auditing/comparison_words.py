"""A comparison in words: who erased, who moved the data least, who wrote the concept into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from excise.auditing.comparison import Comparison, Outcome

__all__ = ["best_methods", "comparison_in_words"]

LARGER_IS_BETTER = {"linear_loss": True, "nonlinear_loss": True, "edit": False, "task_accuracy": True, "tpr_gap": False}
GONE = 1e-6  # correlation that is left on the fitting rows, in any dtype but 16 bits


def best_methods(comparison: Comparison, column: str) -> set[str]:
    """The methods that are best in a column. In losses, all whose interval reaches the best one's value.

    A method that moved the data hardly at all because it left the concept in place is not best in `edit`: there, and in
    `task_accuracy`, only methods that erased compete.
    """
    erased = {o.method for o in comparison.outcomes if has_erased(o, comparison)}
    fitted = [o for o in comparison.outcomes if o.method not in ("none", "random") and getattr(o, column) is not None]
    if column in ("edit", "task_accuracy", "tpr_gap"):
        fitted = [o for o in fitted if o.method in erased]
    if not fitted:
        return set()
    up = LARGER_IS_BETTER[column]
    most = (max if up else min)(fitted, key=lambda o: getattr(o, column))
    interval = {"linear_loss": "linear_interval", "nonlinear_loss": "nonlinear_interval"}.get(column)
    if interval is None:
        value = getattr(most, column)
        return {o.method for o in fitted if abs(getattr(o, column) - value) <= 1e-9 + 1e-3 * abs(value)}
    return {o.method for o in fitted if _reaches(o, interval, getattr(most, column))}


def _reaches(outcome: Outcome, interval: str, value: float) -> bool:
    bounds: Any = getattr(outcome, interval)
    return bool(bounds is not None and bounds[1] >= value)


def has_erased(outcome: Outcome, comparison: Comparison) -> bool:
    """No linear probe gained on the constant, held out; or nothing is left on the fitting rows."""
    left, bounds = outcome.fitted_correlation, outcome.linear_interval
    on_fit = left is not None and left < GONE
    return outcome.method != "none" and (on_fit or (bounds is not None and bounds[1] >= comparison.constant_loss))


def comparison_in_words(comparison: Comparison) -> list[str]:
    out = []
    writers = [o for o in comparison.outcomes if o.writes]
    if writers:
        clean = comparison.outcomes[0].nonlinear_loss
        names = ", ".join(f"{o.method} ({o.nonlinear_probe}: {o.nonlinear_loss:.3f} bits)" for o in writers)
        out.append(
            f"These edits write the concept into the data: a probe loses less after them than before ({clean:.3f} bits): "
            f"{names}."
        )
    none = [o for o in comparison.outcomes if o.method == "none" and o.linear_interval is not None]
    if none and none[0].linear_interval is not None and none[0].linear_interval[1] >= comparison.constant_loss:
        out.append("Nothing to erase: before any edit, a linear probe does not gain on the constant.")
        return out
    erased = [
        o for o in comparison.outcomes if has_erased(o, comparison) and o.edit is not None and o.method != "random"
    ]
    if not erased:
        out.append("No method erased the concept: a linear probe gains on the constant after each of them.")
        return out
    out.append(f"Erased for a linear probe: {', '.join(o.method for o in erased)}.")
    free = [o for o in erased if not o.needs_labels]
    for kind, of in (("", free), (" with labels at hand", [o for o in erased if o.needs_labels])):
        if of:
            least = min(of, key=lambda o: o.edit or 0.0)
            out.append(f"The smallest edit{kind}: {least.method}, {100 * (least.edit or 0.0):.2g}% of the variance.")
    return out

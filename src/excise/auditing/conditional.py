"""The promise of erasure given the task: within every class of it, no linear score differs between groups on average.

With one column 1[y = c] (z - E[z | y = c]) for each class c, that promise says that the features are uncorrelated with
all of these columns: an audit of numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from excise.concepts.concept import Concept
from excise.errors import ConceptError
from excise.methods.checks import class_codes
from excise.moments.labelled_rows import flat_labels

__all__ = ["columns_given"]


def columns_given(z: Any, y: Any, lead: tuple[int, ...], kind: Any) -> Any:
    """(n, c k) columns, those that are zero left out.

    Raises:
        ConceptError: the labels do not fit together, or no class of y has rows of two groups.
    """
    encoded = Concept.learn(flat_labels(z, lead), kind=kind)[1]
    values = np.asarray(encoded.dense(), dtype=np.float64)
    codes, names = class_codes(y, lead, len(values), "categorical", "condition_on")
    columns = []
    for c in range(len(names)):
        own = codes == c
        block = np.zeros_like(values)
        block[own] = values[own] - values[own].mean(axis=0)
        columns.append(block)
    out = np.concatenate(columns, axis=1)
    varies = np.abs(out).max(axis=0) > 0
    if not varies.any():
        raise ConceptError(
            "condition_on: within every class of the task the concept is constant: nothing is left to find"
        )
    return out[:, varies]

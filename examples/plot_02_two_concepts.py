"""
Two concepts: jointly, or one after the other?
==============================================

Two correlated concepts are to be erased. Fitting one eraser for each on the raw data and applying both does not work: each was fitted without
knowing what the other does.
"""

# %%
# Data in which two concepts go together
# --------------------------------------

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import excise

rng = np.random.default_rng(0)
n, d = 20_000, 12
language = rng.integers(0, 2, n)
region = np.where(rng.random(n) < 0.8, language, rng.integers(0, 2, n))  # mostly the same people
mixing = rng.standard_normal((d, d))
X = rng.standard_normal((n, d)) @ mixing + np.outer(language, rng.standard_normal(d)) * 2
X += np.outer(region, rng.standard_normal(d)) * 2

# %%
# Four ways
# ---------

first, second = excise.fit(X, language), excise.fit(X, region)
in_turn = first(X)
in_turn = excise.fit(in_turn, region)(in_turn)  # fitted again on what the first one left
joint = excise.fit(X, pd.DataFrame({"language": language, "region": region}))
ways = {
    "nothing": X,
    "language\nonly": first(X),
    "both, fitted\non raw data": second(first(X)),
    "in turn,\nfitted again": in_turn,
    "jointly": joint(X),
}

# %%
# What is left of each, and what it cost
# --------------------------------------
# R² of the best linear predictor on the same rows; the edit as a share of the variance.


def r_squared(X, z):
    A = np.column_stack([X, np.ones(len(X))])
    residual = z - A @ np.linalg.lstsq(A, z, rcond=1e-9)[0]
    return 1 - residual.var() / z.var()


left = {name: (r_squared(Y, language), r_squared(Y, region)) for name, Y in ways.items()}
edit = {name: ((X - Y) ** 2).sum() / ((X - X.mean(0)) ** 2).sum() for name, Y in ways.items()}

fig, (top, bottom) = plt.subplots(1, 2, figsize=(12.5, 4.2), width_ratios=[3, 2])
at = np.arange(len(ways))
for i, (label, color) in enumerate((("language", "#0072B2"), ("region", "#D55E00"))):
    bars = top.bar(at + 0.38 * i - 0.19, [left[name][i] for name in ways], 0.36, color=color, label=label)
    top.bar_label(bars, [f"{left[name][i]:.2f}" if left[name][i] > 1e-9 else "0" for name in ways], padding=2)
top.set_xticks(at, ways)
top.set_ylabel("R² of the best linear predictor")
top.set_title("What is left")
top.set_ylim(0, 1.15)
top.legend(loc="upper right")
names = list(ways)[1:]
bars = bottom.bar(range(len(names)), [100 * edit[name] for name in names], color="#999999")
bottom.bar_label(bars, [f"{100 * edit[name]:.2f}%" for name in names], padding=2)
bottom.set_xticks(range(len(names)), names, fontsize=10)
bottom.set_ylabel("edit, % of the variance")
bottom.set_title("What it cost")
plt.show()

# %%
# Erasing in turn works if the second eraser is fitted on the output of the first. It is then the same map as the joint one, in either order; but
# jointly there is one eraser to fit and to keep. With `ConceptEraser(cross=True)` the intersections of both concepts are erased too.

print(f"largest difference between 'in turn, fitted again' and 'jointly': {abs(in_turn - joint(X)).max():.1e}")

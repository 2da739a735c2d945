"""
How many rows are enough?
=========================

On its own rows an eraser is exact. On new rows something is left, and it depends on how many rows there were per feature. Shrinkage makes the edit of new
rows more accurate; it cannot replace rows.
"""

# %%
# A concept in 100 correlated features
# ------------------------------------

import warnings

import matplotlib.pyplot as plt
import numpy as np

import excise

rng = np.random.default_rng(0)
d = 100
factors = rng.standard_normal((d, 10)) / np.sqrt(10)
direction = rng.standard_normal(d) / np.sqrt(d)


def draw(n):
    z = rng.integers(0, 2, n)
    X = rng.standard_normal((n, 10)) @ factors.T + 0.7 * rng.standard_normal((n, d)) + 2 * np.outer(z - 0.5, direction)
    return X, z


def r_squared(X, z):
    """Of the best linear predictor on many rows, less what chance gives it."""
    A = np.column_stack([X, np.ones(len(X))])
    residual = z - A @ np.linalg.lstsq(A, z, rcond=1e-9)[0]
    return max(0.0, 1 - (residual @ residual / (len(X) - d - 1)) / (z.var() * len(z) / (len(z) - 1)))


# %%
# Fit on few rows, measure on many others
# ---------------------------------------

new, new_z = draw(20_000)
before = r_squared(new, new_z)
best = excise.fit(new, new_z)(new)  # what an eraser with enough rows does to them
counts = [60, 120, 250, 500, 1000, 2000, 5000, 10_000]
left = {"none": [], "oas": []}
error = {"none": [], "oas": []}
warnings.simplefilter("ignore", excise.ExciseWarning)  # [few-rows]: it tells what this example shows
for n in counts:
    draws = [draw(n) for _ in range(3)]
    for shrinkage in left:
        erased = [excise.fit(*rows, shrinkage=shrinkage)(new) for rows in draws]
        left[shrinkage].append(np.mean([r_squared(Y, new_z) for Y in erased]))
        error[shrinkage].append(np.mean([((Y - best) ** 2).sum() for Y in erased]) / ((best - new) ** 2).sum())

# %%
# The picture
# -----------

fig, axes = plt.subplots(1, 2, figsize=(12, 4.4))
for shrinkage, color in (("none", "#D55E00"), ("oas", "#0072B2")):
    label = "no shrinkage" if shrinkage == "none" else "shrinkage='oas'"
    line = {"lw": 5, "ms": 10, "alpha": 0.6} if shrinkage == "none" else {"lw": 1.8, "ms": 5}
    axes[0].plot(counts, left[shrinkage], "o-", color=color, label=label, **line)
    axes[1].plot(counts, error[shrinkage], "o-", color=color, label=label, **line)
axes[0].axhline(before, color="grey", ls=":")
axes[0].text(counts[-1], before * 0.97, "before erasure", ha="right", va="top", color="grey")
axes[0].plot(counts, [d / (n + d) for n in counts], color="black", ls="--", lw=1, label="d / (n + d)")
axes[0].set_ylabel("R² that a linear model finds in new rows")
axes[0].set_title("What is left of the concept")
axes[1].set_ylabel("squared error of the edit,\nrelative to the best edit")
axes[1].set_yscale("log")
axes[1].set_title("How wrong the edit is")
for ax in axes:
    ax.set_xscale("log")
    ax.axvline(d, color="grey", lw=0.8)
    ax.set_xlabel(f"rows to fit on ({d} features)")
    ax.legend()
axes[1].text(d * 1.05, axes[1].get_ylim()[0] * 1.15, "n = d", color="grey")
plt.show()

# %%
# Shrinkage does not change what is left: that is decided by the class means. It makes the edit of new rows more accurate where rows are fewer than about
# ten per feature. The default, `shrinkage="auto"`, uses it there.

"""
Streaming and merging
=====================

Data that do not fit into memory are read in batches; data on several machines are read where they are. The result is the same eraser.
"""

# %%
# Two hundred thousand rows, in batches
# -------------------------------------

import matplotlib.pyplot as plt
import numpy as np

import excise

rng = np.random.default_rng(0)
n, d, classes = 200_000, 48, 4
centres = 0.5 * rng.standard_normal((classes, d))
z = rng.integers(0, classes, n)
X = (rng.standard_normal((n, d)) + centres[z]).astype(np.float32)


def gap(X):
    """The largest distance between a class mean and the mean, over all rows, in standard deviations."""
    X = X.astype(np.float64)
    return max(np.abs((X[z == c].mean(0) - X.mean(0)) / X.std(0)).max() for c in range(classes))


# %%
# While the stream runs, an eraser can be made at any time. Once all rows were seen, it is exact for all of them.

m = excise.Moments()
seen, left = [], []
marks = [500, 2_000, 8_000, 30_000, 100_000, n]
start = 0
for stop in marks:
    for i in range(start, stop, 8_192):
        m.update(X[i : min(i + 8_192, stop)], z[i : min(i + 8_192, stop)])
    seen.append(stop)
    left.append(gap(excise.leace(m)(X)))
    start = stop
streamed = excise.leace(m)

# %%
# Four machines, each with a part; nothing but moments travels. The parts are unequal, and the last one has never seen class 0.

order = np.argsort(z != 0, kind="stable")  # class 0 first
parts = [order[:90_000], order[90_000:120_000], order[120_000:121_000], order[121_000:]]
moments = [excise.Moments().update(X[part], z[part]) for part in parts]
merged = excise.leace(moments[3] + (moments[0] + moments[2]) + moments[1])
whole = excise.fit(X, z)


def difference(eraser):
    return float(np.abs(eraser(X[:20_000].astype(np.float64)) - whole(X[:20_000].astype(np.float64))).max())


# %%
# The picture
# -----------

fig, axes = plt.subplots(1, 2, figsize=(12, 4.3), width_ratios=[3, 2])
axes[0].plot(seen, left, "o-", color="#0072B2", lw=2)
axes[0].axhline(gap(X), color="#D55E00", ls="--")
axes[0].text(seen[0], gap(X) * 1.6, "before erasure", color="#D55E00")
axes[0].set(
    xscale="log", yscale="log", xlabel="rows seen so far", ylabel="what is left in all rows\n(standard deviations)"
)
axes[0].set_ylim(1e-10, 10)
axes[0].set_title("An eraser at any time, exact at the end")
axes[0].annotate(
    "all rows seen:\nrounding of float32", (seen[-1], left[-1]), (2_000, 3e-9), arrowprops={"arrowstyle": "->"}
)
values = [difference(streamed), difference(merged)]
bars = axes[1].bar(["25 batches", "4 machines,\nmerged"], values, color=["#0072B2", "#009E73"], width=0.55)
axes[1].bar_label(bars, [f"{value:.0e}" for value in values], padding=3)
axes[1].set_yscale("log")
axes[1].set_ylim(1e-16, 1e-2)
axes[1].set_ylabel("largest difference of an entry")
axes[1].set_title("Against one fit on all rows")
plt.show()

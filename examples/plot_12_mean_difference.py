"""
Subtract a mean difference, or use LEACE?
=========================================

A popular way to remove a concept from activations is to project off the difference of the two class means. It does remove the concept linearly. LEACE
removes the same with a smaller edit, because it knows how the features vary together.
"""

# %%
# Activations with correlated features
# ------------------------------------

import matplotlib.pyplot as plt
import numpy as np

import excise

rng = np.random.default_rng(0)
n = 600
z = rng.integers(0, 2, n)
noise = rng.standard_normal((n, 2)) @ np.array(
    [[2.2, 1.6], [0.0, 0.45]]
)  # one direction varies much more than the other
X = noise + np.outer(z - 0.5, [1.0, 2.6])

ways = {
    "Mean difference projected off": excise.fit(X, z, method="mean_projection"),
    "LEACE": excise.fit(X, z),
}

# %%
# The picture
# -----------
# Both maps send all points to a line, since two dimensions minus one is one. Grey strokes show how far each point moves.

fig, axes = plt.subplots(1, 3, figsize=(14, 4.8), sharex=True, sharey=True)
colors = np.array(["#0072B2", "#D55E00"])


def draw(ax, rows, title):
    for value, name in enumerate(("concept absent", "concept present")):
        ax.scatter(*rows[z == value].T, s=10, alpha=0.6, color=colors[value], label=name, zorder=2)
        ax.plot(*rows[z == value].mean(0), "X", ms=13, color=colors[value], mec="white", mew=1.5, zorder=4)
    ax.set_title(title)
    ax.set_aspect("equal")


draw(axes[0], X, "Before")
axes[0].legend(markerscale=2, loc="upper left")
for ax, (name, eraser) in zip(axes[1:], ways.items(), strict=True):
    moved = eraser(X)
    chosen = slice(0, 150)
    ax.plot(*np.stack([X[chosen], moved[chosen]], 1).transpose(2, 1, 0), color="grey", lw=0.5, alpha=0.5, zorder=1)
    edit = ((X - moved) ** 2).sum() / ((X - X.mean(0)) ** 2).sum()
    draw(ax, moved, f"{name}\nmean squared edit {100 * edit:.0f}% of the variance")
for ax in axes:
    ax.set_xlabel("activation 1")
axes[0].set_ylabel("activation 2")
plt.show()

# %%
# The same in 64 dimensions, for features that are more and more correlated:

d = 64
for strength in (0.0, 1.0, 3.0):
    scales = np.exp(strength * np.linspace(0, 1, d))
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    z = rng.integers(0, 2, 20_000)
    X = rng.standard_normal((20_000, d)) * scales @ basis + np.outer(z - 0.5, rng.standard_normal(d))
    edits = [((X - excise.fit(X, z, method=m)(X)) ** 2).sum() for m in ("mean_projection", "leace")]
    print(
        f"largest standard deviation / smallest = {np.exp(strength):4.0f}: mean projection edits {edits[0] / edits[1]:.2f} times as much"
    )

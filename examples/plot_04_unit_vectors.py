"""
Unit vectors and a cosine index
===============================

Every cosine index divides vectors by their length. That brings an erased concept back. `normalize=True` fits an eraser whose output is normalised already and
free of the concept *after* the division.
"""

# %%
# Embeddings whose two sources differ in direction and in concentration
# ---------------------------------------------------------------------

import matplotlib.pyplot as plt
import numpy as np

import excise

rng = np.random.default_rng(1)
n, d = 12_000, 24
source = rng.integers(0, 2, n)
topic = rng.integers(0, 8, n)
topics = 1.2 * rng.standard_normal((8, d))
centre = 2.2 * rng.standard_normal(d) / np.sqrt(d)
X = centre + topics[topic] * (0.35 + 1.0 * source)[:, None] + np.outer(source, 0.9 * rng.standard_normal(d))
X += rng.standard_normal((n, d)) * 0.7


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def r_squared(X, z):
    A = np.column_stack([X, np.ones(len(X))])
    return 1 - np.var(z - A @ np.linalg.lstsq(A, z, rcond=1e-9)[0]) / np.var(z)


X = unit(X)  # as they come out of most encoders
half = slice(0, n // 2), slice(n // 2, n)

# %%
# Three kinds of vectors for the index
# ------------------------------------

plain = excise.fit(X[half[0]], source[half[0]])
normalised = excise.fit(X[half[0]], source[half[0]], normalize=True)
ways = {
    "no erasure": X,
    "LEACE, then\nnormalised": unit(plain(X)),
    "normalize=True": normalised(X),
}
on_fit = [r_squared(rows[half[0]], source[half[0]]) for rows in ways.values()]
on_new = [r_squared(rows[half[1]], source[half[1]]) for rows in ways.values()]


def same_source(rows, k=10):
    """Share of the ten nearest neighbours, by cosine, that come from the same source."""
    index, labels = rows[half[1]], source[half[1]]
    nearest = np.argsort(-(index[:800] @ index.T), axis=1)[:, 1 : k + 1]
    return np.mean(labels[nearest] == labels[:800, None])


def same_topic(rows, k=10):
    index, labels = rows[half[1]], topic[half[1]]
    nearest = np.argsort(-(index[:800] @ index.T), axis=1)[:, 1 : k + 1]
    return np.mean(labels[nearest] == labels[:800, None])


# %%
# The picture
# -----------

fig, axes = plt.subplots(1, 2, figsize=(13, 4.5))
at = np.arange(len(ways))
for i, (label, values, color) in enumerate((("fitting rows", on_fit, "#0072B2"), ("new rows", on_new, "#56B4E9"))):
    bars = axes[0].bar(at + 0.38 * i - 0.19, np.maximum(values, 1.2e-6), 0.36, color=color, label=label)
    axes[0].bar_label(bars, [f"{value:.2g}" if value > 1e-12 else "0" for value in values], padding=2)
axes[0].set_yscale("log")
axes[0].set_ylim(1e-6, 10)
axes[0].set_xticks(at, ways)
axes[0].set_ylabel("R² of the best linear predictor")
axes[0].set_title("What unit vectors say about the source")
axes[0].legend()
for i, (label, share, color) in enumerate(
    (("same source", same_source, "#D55E00"), ("same topic", same_topic, "#009E73"))
):
    values = [share(rows) for rows in ways.values()]
    bars = axes[1].bar(at + 0.38 * i - 0.19, values, 0.36, color=color, label=label)
    axes[1].bar_label(bars, fmt="%.2f", padding=2)
axes[1].axhline(0.5, color="#D55E00", ls=":", lw=1)
axes[1].set_xticks(at, ways)
axes[1].set_ylim(0, 1.25)
axes[1].set_ylabel("share of ten nearest neighbours")
axes[1].set_title("A cosine index, new rows")
axes[1].legend(ncols=2)
plt.show()

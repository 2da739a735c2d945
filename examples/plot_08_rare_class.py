"""
A class with 20 rows among 200,000
==================================

Rare groups are often the ones that need protection. In squared error a class of 20 rows is invisible, and a tolerance that is relative to the whole data
drops it. excise decides on correlations, which have no units, so a rare class counts like any other.
"""

# %%
# Five classes, each ten times rarer
# ----------------------------------

import matplotlib.pyplot as plt
import numpy as np

import excise

rng = np.random.default_rng(0)
d = 16
sizes = {"200,000": 200_000, "20,000": 20_000, "2,000": 2_000, "200": 200, "20": 20}
means = {name: 1.5 * rng.standard_normal(d) / np.sqrt(d) for name in sizes}
z = np.repeat(list(sizes), list(sizes.values()))
X = rng.standard_normal((len(z), d)) + np.concatenate([np.tile(means[name], (size, 1)) for name, size in sizes.items()])

# %%
# Erase, and measure each class on the fitting rows and on new rows
# -----------------------------------------------------------------
# The distance of the class mean from the mean of all rows, in standard deviations.

eraser = excise.fit(X, z)


def distance(X, rows):
    return np.linalg.norm((X[rows].mean(0) - X.mean(0)) / X.std(0))


erased = eraser(X)
before = [distance(X, z == name) for name in sizes]
after = [distance(erased, z == name) for name in sizes]
new = {name: eraser(rng.standard_normal((100_000, d)) + means[name]) for name in sizes}
unseen = [np.linalg.norm((new[name].mean(0) - erased.mean(0)) / erased.std(0)) for name in sizes]

# %%
# The picture
# -----------

fig, ax = plt.subplots(figsize=(9, 4.8))
at = np.arange(len(sizes))
series = (
    ("before", before, "#D55E00"),
    ("after, new rows", unseen, "#56B4E9"),
    ("after, fitting rows", after, "#0072B2"),
)
for i, (label, values, color) in enumerate(series):
    ax.bar(at + 0.27 * (i - 1), values, 0.25, bottom=1e-17, color=color, label=label)
sizes_drawn = np.array(list(sizes.values()))
ax.plot(at, np.sqrt(4 / sizes_drawn), "k_", ms=26, mew=2, label="2 / √rows: error of 4 means")
ax.set_yscale("log")
ax.set_ylim(1e-17, 1e5)
ax.set_xticks(at, sizes)
ax.set_xlabel("rows of the class")
ax.set_ylabel("distance of the class mean\n(standard deviations)")
ax.set_title("Every class is erased, whatever its size")
ax.legend(ncols=2, loc="upper center", fontsize=10)
plt.show()

print(f"rank of the eraser: {eraser.rank} (five classes span four directions)")

"""
Site effects in measurements, and a new site
============================================

Four hospitals measure the same 20 markers, each with its own calibration. A classifier of a disease learns the hospital instead. Erase the site,
then ask what happens when a fifth hospital joins.
"""

# %%
# The data
# --------
# The disease is common in hospitals A and B and rare in C and D, so that a classifier gains from recognising the hospital.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

import excise

rng = np.random.default_rng(3)
d = 20
sites = ["A", "B", "C", "D", "E"]
shift = {site: 1.6 * rng.standard_normal(d) for site in sites}
effect = 0.55 * rng.standard_normal(d)
share = {"A": 0.7, "B": 0.6, "C": 0.4, "D": 0.3, "E": 0.5}


def draw(site, n):
    ill = (rng.random(n) < share[site]).astype(int)
    return rng.standard_normal((n, d)) + shift[site] + np.outer(ill, effect), ill


parts = {site: draw(site, 400) for site in sites[:4]}
X = np.concatenate([part[0] for part in parts.values()])
ill = np.concatenate([part[1] for part in parts.values()])
site = np.repeat(sites[:4], 400)
new, new_ill = draw("E", 2000)

# %%
# Erase the site
# --------------
# For a new site only its rows are needed, not their diagnosis: the site of a row is known. We add its first rows to the fit.


def accuracy(rows_of_the_new_site):
    k = rows_of_the_new_site
    Z = np.concatenate([X, new[:k]])
    labels = np.concatenate([site, np.full(k, "E")])
    eraser = excise.fit(Z, labels)
    model = LogisticRegression(max_iter=1000).fit(eraser(X), ill)
    return model.score(eraser(new[1000:]), new_ill[1000:]), eraser


plain = LogisticRegression(max_iter=1000).fit(X, ill).score(new[1000:], new_ill[1000:])
own = LogisticRegression(max_iter=1000).fit(new[:1000], new_ill[:1000]).score(new[1000:], new_ill[1000:])
counts = [0, 5, 10, 20, 50, 100, 200, 500, 1000]
curve = [accuracy(k)[0] for k in counts]
eraser = accuracy(200)[1]

# %%
# The picture
# -----------

fig, axes = plt.subplots(1, 3, figsize=(14, 4.3), width_ratios=[1, 1, 1.2])
colors = dict(zip(sites, ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#000000"), strict=True))
shown = np.concatenate([X, new[:400]])
labels = np.concatenate([site, np.full(400, "E")])
for ax, rows, title in ((axes[0], shown, "Before"), (axes[1], eraser(shown), "Site erased")):
    plane = PCA(2).fit_transform(rows)
    for name in sites:
        at = labels == name
        ax.scatter(*plane[at].T, s=7, alpha=0.5, color=colors[name], label="E (new)" if name == "E" else name)
    ax.set_title(title)
    ax.set_xlabel("first principal component")
axes[0].set_ylabel("second principal component")
axes[0].legend(markerscale=2.5, ncols=2, fontsize=10)
axes[2].plot(range(len(counts)), curve, "o-", color="#009E73", lw=2)
axes[2].text(len(counts) - 1, max(curve) - 0.035, "site erased", color="#009E73", ha="right", va="top")
axes[2].axhline(plain, color="#D55E00", ls="--")
axes[2].text(len(counts) - 1, plain + 0.008, "no erasure", color="#D55E00", ha="right")
axes[2].axhline(own, color="grey", ls=":")
axes[2].text(0, own + 0.008, "trained at the new site itself", color="grey")
axes[2].set_xticks(range(len(counts)), counts)
axes[2].set_xlabel("rows of the new site in the fit")
axes[2].set_ylabel("accuracy at the new site")
axes[2].set_title("A new hospital, no diagnosis known")
axes[2].set_ylim(0.5, 1.0)
plt.show()

print(
    f"no erasure {plain:.3f}; site erased {curve[0]:.3f} without the new site, {curve[-1]:.3f} with 1,000 of its rows"
)

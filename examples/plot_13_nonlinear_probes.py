"""
What nonlinear models still find
================================

LEACE removes what *linear* models can use. A nonlinear model may still find the concept, from covariances or from curved boundaries. Measure it before you
rely on erasure against such models.
"""

# %%
# Handwritten digits: erase whether a digit is even
# -------------------------------------------------
# Half of the images fit the eraser and train the models; the other half measure them.

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

import excise

images, digit = load_digits(return_X_y=True)
even = digit % 2 == 0
X, X_new, z, z_new, digit, digit_new = train_test_split(images / 16, even, digit, test_size=0.5, random_state=0)

warnings.simplefilter("ignore", excise.ExciseWarning)  # [few-rows]
erasers = {
    "before": lambda X, z: X,
    "leace": excise.fit(X, z),
    "quadratic (labels needed)": excise.fit(X, z, method="quadratic", shrinkage="oas"),
}
probes = {
    "logistic\nregression": LogisticRegression(max_iter=5000),
    "radial basis\nfunctions": SVC(C=10, gamma="scale"),
    "nearest\nneighbours": KNeighborsClassifier(5),
    "neural\nnetwork": MLPClassifier((64,), max_iter=600, tol=1e-3, random_state=0),
}
accuracy = {}
for name, eraser in erasers.items():
    rows, new = eraser(X, z), eraser(X_new, z_new)
    accuracy[name] = [probe.fit(rows, z).score(new, z_new) for probe in probes.values()]

# %%
# The picture
# -----------

fig, (ax, pictures) = plt.subplots(1, 2, figsize=(13.5, 4.6), width_ratios=[2.6, 1.9])
colors = ("#D55E00", "#0072B2", "#56B4E9")
for i, ((name, values), color) in enumerate(zip(accuracy.items(), colors, strict=True)):
    bars = ax.bar(np.arange(len(probes)) + 0.27 * (i - 1), values, 0.25, color=color, label=name)
    ax.bar_label(bars, fmt="%.2f", fontsize=9, padding=2)
ax.axhline(max(z_new.mean(), 1 - z_new.mean()), color="black", ls="--", lw=1, label="majority")
ax.set_xticks(range(len(probes)), probes)
ax.set_ylim(0, 1.25)
ax.set_yticks(np.arange(0, 1.01, 0.25))
ax.set_ylabel("accuracy on other images")
ax.set_title("Is the digit even?")
ax.legend(ncols=4, loc="upper center", fontsize=11)
show = [np.flatnonzero(digit_new == value)[0] for value in range(5)]
sheet = [
    np.hstack([np.pad(m.reshape(8, 8), 1) for m in rows[show]]) for rows in (X_new, erasers["leace"](X_new, z_new))
]
pictures.imshow(np.clip(np.vstack(sheet), 0, 1), cmap="gray_r")
pictures.set_yticks([4.5, 14.5], ["before", "after\nleace"])
pictures.set_xticks([])
pictures.spines[:].set_visible(False)
pictures.set_title("The images hardly change")
plt.show()

# %%
# The quadratic eraser makes covariances equal too, but it needs the labels of new images, and the way in which it moves them differs between the classes:
# flexible models can recognise that.

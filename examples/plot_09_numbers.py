"""
Numbers in place of classes: age
================================

A concept can be a number. Erase age from clinical measurements: as a number, as classes, and as a number with its square.
"""

# %%
# The data
# --------
# The diabetes data of scikit-learn, with age as the concept. The data come scaled; we give age back a mean of 48.5 years and a standard deviation of
# 13.1, the values that the authors of the data report.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler

import excise

data = load_diabetes()
is_age = np.array(data.feature_names) == "age"
age = data.data[:, is_age].ravel()
age = 48.5 + 13.1 * age / age.std()
X = StandardScaler().fit_transform(data.data[:, ~is_age])

# %%
# A float is a number, an integer a class
# ---------------------------------------
# For whole numbers excise asks which of the two is meant: `kind="continuous"` or `kind="categorical"`.

as_number = excise.fit(X, age)
as_classes = excise.fit(X, np.where(age < 40, "young", np.where(age < 60, "middle", "old")))
with_square = excise.fit(X, np.column_stack([age, (age - age.mean()) ** 2]))
ways = {
    "before": X,
    "as a number": as_number(X),
    "as three classes": as_classes(X),
    "number and square": with_square(X),
}

# %%
# The picture
# -----------
# Left and middle: age as predicted by ridge regression from the other measurements, each person by a model that was trained on others. Right: R² of the best
# linear predictor of age, and of its square, on all rows.


def r_squared(X, z):
    A = np.column_stack([X, np.ones(len(X))])
    return 1 - np.var(z - A @ np.linalg.lstsq(A, z, rcond=1e-9)[0]) / np.var(z)


fig, axes = plt.subplots(1, 3, figsize=(14.5, 4.4), width_ratios=[1, 1, 1.35])
axes[1].sharey(axes[0])
for ax, name in zip(axes, ("before", "as a number"), strict=False):
    rows = ways[name]
    said = cross_val_predict(RidgeCV(np.logspace(-2, 4, 13)), rows, age, cv=10)
    ax.scatter(age, said, s=12, alpha=0.5, color="#D55E00" if name == "before" else "#0072B2")
    slope, offset = np.polyfit(age, said, 1)
    ax.plot([20, 80], [20 * slope + offset, 80 * slope + offset], color="black", lw=2)
    r2 = 1 - ((age - said) ** 2).sum() / ((age - age.mean()) ** 2).sum()
    ax.set_title(f"{'Before' if name == 'before' else 'Age erased as a number'}: R² = {max(r2, 0):.2f}")
    ax.set_xlabel("age")
for i, (label, target, color) in enumerate(
    (("age", age, "#0072B2"), ("square of age", (age - age.mean()) ** 2, "#E69F00"))
):
    values = [r_squared(rows, target) for rows in ways.values()]
    bars = axes[2].bar(np.arange(len(ways)) + 0.4 * i - 0.2, values, 0.37, color=color, label=label)
    axes[2].bar_label(bars, [f"{value:.3f}" if value > 1e-9 else "0" for value in values], padding=2, fontsize=10)
axes[2].set_xticks(range(len(ways)), [name.replace(" ", "\n", 2) for name in ways])
axes[2].set_title("What is left, by how age was given")
axes[2].set_ylabel("R² on the fitting rows")
axes[2].legend()
axes[0].set_ylabel("age predicted from the rest")
plt.show()

for name, eraser in (("number", as_number), ("classes", as_classes), ("number and square", with_square)):
    cost = ((X - eraser(X)) ** 2).sum() / (X**2).sum()
    print(f"{name:18} rank {eraser.rank}, edit {100 * cost:.1f}% of the variance")

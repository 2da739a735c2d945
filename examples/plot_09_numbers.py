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
ways = {"before": X, "as a number": as_number(X), "as three classes": as_classes(X), "number and square": with_square(X)}

# %%
# The picture
# -----------
# Age as predicted by ridge regression from the other measurements, each person by a model that was trained on others.

fig, axes = plt.subplots(1, 4, figsize=(15, 4.2), sharex=True, sharey=True)
for ax, (name, rows) in zip(axes, ways.items(), strict=True):
    said = cross_val_predict(RidgeCV(np.logspace(-2, 4, 13)), rows, age, cv=10)
    ax.scatter(age, said, s=12, alpha=0.5, color="#D55E00" if name == "before" else "#0072B2")
    slope, offset = np.polyfit(age, said, 1)
    ax.plot([20, 80], [20 * slope + offset, 80 * slope + offset], color="black", lw=2)
    r2 = 1 - ((age - said) ** 2).sum() / ((age - age.mean()) ** 2).sum()
    ax.set_title(f"{name}\nR² = {max(r2, 0):.2f}")
    ax.set_xlabel("age")
axes[0].set_ylabel("age predicted from the rest")
plt.show()

for name, eraser in (("number", as_number), ("classes", as_classes), ("number and square", with_square)):
    cost = ((X - eraser(X)) ** 2).sum() / (X**2).sum()
    print(f"{name:18} rank {eraser.rank}, edit {100 * cost:.1f}% of the variance")

"""
Remove one concept from one data set
====================================

Nine clinical measurements of 442 people give away their sex. Erase it, and look at the best linear score of a fresh classifier before and after.
"""

# %%
# The data
# --------
# The diabetes data of scikit-learn. Sex is a column of its own; we take it out and ask what the other nine still say. The data set does not say
# which of the two groups is which.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler

import excise

data = load_diabetes()
is_sex = np.array(data.feature_names) == "sex"
sex = np.where(data.data[:, is_sex].ravel() > 0, "group 1", "group 2")
X = StandardScaler().fit_transform(data.data[:, ~is_sex])

# %%
# Erase, and measure
# ------------------
# The scores are cross-validated: each person is scored by a classifier that was trained on others. The eraser was fitted on all rows, so the
# classifiers are slightly worse than guessing: what is gone on the whole has the opposite sign in the parts. To measure what holds for new people,
# use `excise.audit(..., refit="leace")`.

eraser = excise.fit(X, sex)


def scores(X):
    return cross_val_predict(LogisticRegression(), X, sex, cv=10, method="decision_function")


before, after = scores(X), scores(eraser(X))

# %%
# The picture
# -----------

fig, axes = plt.subplots(1, 2, figsize=(10.5, 4))
for ax, score, title in zip(axes, (before, after), ("Before", "Sex erased"), strict=True):
    bins = np.linspace(-3.5, 3.5, 29) * (1 if title == "Before" else 0.2)
    for group, color in (("group 1", "#0072B2"), ("group 2", "#D55E00")):
        ax.hist(score[sex == group], bins, alpha=0.6, color=color, label=group)
    accuracy = np.mean((score > 0) == (sex == "group 2"))
    ax.set_title(f"{title}: accuracy {accuracy:.2f}")
    ax.set_xlabel("score of a linear classifier")
axes[0].set_ylabel("people")
majority = max(np.mean(sex == "group 1"), np.mean(sex == "group 2"))
fig.suptitle(f"What nine measurements tell about sex (majority: {majority:.2f})")
axes[0].legend()
plt.show()

# %%
# What the edit cost
# ------------------
# One direction was removed. The edit is the smallest that any affine map needs.

edit = ((X - eraser(X)) ** 2).sum() / (X**2).sum()
print(f"rank {eraser.rank}, edit {100 * edit:.1f}% of the variance")

"""
A text classifier that learns the source
========================================

Complaints come from a web form and from letters. In the training data most urgent ones are letters, so a classifier of urgency learns the style of
letters. In use, the mixture changes.
"""

# %%
# Documents, made on the spot
# ---------------------------
# Each document has words about its matter, words that tell how urgent it is, and turns of phrase that come with its source.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import excise

rng = np.random.default_rng(0)
URGENT = ["leak", "fire", "today", "broken", "immediately", "danger", "smoke", "injured"]
CALM = ["question", "suggestion", "whenever", "invoice", "address", "update", "copy", "later"]
LETTER = ["dear", "sincerely", "hereby", "enclosed", "regards", "kindly", "undersigned", "faithfully"]
FORM = ["hi", "thx", "pls", "asap-form", "via", "submitted", "ticket", "dropdown"]
COMMON = [
    "the",
    "a",
    "of",
    "to",
    "my",
    "your",
    "service",
    "customer",
    "number",
    "name",
    "please",
    "house",
    "street",
    "water",
    "power",
    "line",
]


def document(urgent, letter):
    words = list(rng.choice(COMMON, 12))
    words += list(rng.choice(URGENT if urgent else CALM, rng.poisson(1.6)))
    words += list(rng.choice(CALM if urgent else URGENT, rng.poisson(0.5)))
    words += list(rng.choice(LETTER if letter else FORM, 1 + rng.poisson(2.5)))
    return " ".join(rng.permutation(words))


def corpus(n, agreement):
    """Urgent letters and calm forms with the share `agreement`, the other two kinds otherwise."""
    urgent = rng.integers(0, 2, n)
    letter = np.where(rng.random(n) < agreement, urgent, 1 - urgent)
    return [document(u, s) for u, s in zip(urgent, letter, strict=True)], urgent, letter


texts, urgent, letter = corpus(3000, 0.9)
represent = make_pipeline(TfidfVectorizer(), TruncatedSVD(40, random_state=0)).fit(texts)
X = represent.transform(texts)

# %%
# Erase the source
# ----------------
# Plain LEACE removes all that goes with the source. Here that is most of the task too, because letters are mostly urgent. Weights that give the
# four kinds of documents the same say remove what the source does by itself.

kinds = 2 * urgent + letter
weights = 1 / np.bincount(kinds)[kinds]
erasers = {
    "no erasure": lambda X: X,
    "source erased": excise.fit(X, letter),
    "source erased, kinds weighted alike": excise.fit(X, letter, sample_weight=weights),
}
agreements = np.linspace(0.1, 0.9, 9)
results = {name: [] for name in erasers}
models = {name: LogisticRegression(C=10).fit(eraser(X), urgent) for name, eraser in erasers.items()}
for agreement in agreements:
    new_texts, new_urgent, _ = corpus(2000, agreement)
    new = represent.transform(new_texts)
    for name, eraser in erasers.items():
        results[name].append(models[name].score(eraser(new), new_urgent))

# %%
# The picture
# -----------

fig, ax = plt.subplots(figsize=(8.5, 4.6))
for (name, values), color in zip(results.items(), ("#D55E00", "#0072B2", "#009E73"), strict=True):
    ax.plot(agreements, values, "o-", lw=2, color=color, label=name)
ax.axvline(0.9, color="grey", ls=":")
ax.text(0.893, 0.945, "as in training", color="grey", ha="right")
ax.set_ylim(0.3, 0.98)
ax.set_xlabel("share of documents in use whose source fits their urgency")
ax.set_ylabel("accuracy")
ax.set_title("Urgency of complaints, when the mixture of sources changes")
ax.legend(loc="lower right")
plt.show()

for name, values in results.items():
    print(
        f"{name:36} accuracy {values[0]:.3f} where the mixture is reversed, {values[-1]:.3f} where it is as in training"
    )

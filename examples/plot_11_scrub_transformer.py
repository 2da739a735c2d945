"""
Scrub a small transformer
=========================

Train a tiny language model on a made-up language, then erase the part of speech of the current word before every attention and MLP block. How much worse does
it predict the next word, compared with erasing random directions?
"""

# %%
# A language with four parts of speech
# ------------------------------------
# A sentence is: determiner, maybe adjectives, noun, verb, and again. What comes next depends on the part of speech of what came last.

import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers

import excise

torch.set_num_threads(1)
torch.manual_seed(0)
rng = np.random.default_rng(0)
PARTS = ("determiner", "adjective", "noun", "verb")
WORDS = {"determiner": range(0, 4), "adjective": range(4, 24), "noun": range(24, 54), "verb": range(54, 74)}
NEXT = {
    "determiner": (("adjective", 0.4), ("noun", 0.6)),
    "adjective": (("adjective", 0.2), ("noun", 0.8)),
    "noun": (("verb", 0.8), ("determiner", 0.2)),
    "verb": (("determiner", 0.9), ("noun", 0.1)),
}


def sentences(n, length=24):
    words, parts = np.zeros((n, length), dtype=int), np.zeros((n, length), dtype=int)
    for row in range(n):
        part = "determiner"
        for t in range(length):
            words[row, t], parts[row, t] = rng.choice(list(WORDS[part])), PARTS.index(part)
            part = str(rng.choice([name for name, _ in NEXT[part]], p=[p for _, p in NEXT[part]]))
    return torch.from_numpy(words), torch.from_numpy(parts)


# %%
# Train
# -----

config = transformers.LlamaConfig(
    vocab_size=74,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=32,
)
model = transformers.LlamaForCausalLM(config)
words, parts = sentences(1500)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
for _ in range(180):
    batch = words[torch.randint(0, 1200, (32,))]
    loss = model(input_ids=batch, labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()

# %%
# Scrub
# -----
# 1,200 sentences fit the erasers, 300 others measure. The control erases as many random directions.

batches = [{"input_ids": words[i : i + 50], "concept": parts[i : i + 50]} for i in range(0, 1200, 50)]
held_out = [{"input_ids": words[i : i + 50], "concept": parts[i : i + 50]} for i in range(1200, 1500, 50)]
scrubbers = {
    "nothing": None,
    "random directions": excise.scrub(model, batches, method="random", progress=False),
    "part of speech": excise.scrub(model, batches, progress=False),
}
loss = {name: excise.evaluate(model, held_out, scrubber).loss for name, scrubber in scrubbers.items()}

# %%
# What a linear probe finds at every site
# ---------------------------------------

found = excise.decodability(model, batches, scrubbers["part of speech"], held_out=held_out)

# %%
# The picture
# -----------

fig, axes = plt.subplots(1, 2, figsize=(12.5, 4.4), width_ratios=[3, 2])
labels = [f"{'attention' if i % 2 == 0 else 'MLP'}\n{i // 2 + 1}" for i in range(len(found.rows))]
for name, title, color, style in (
    ("held_accuracy_before", "before, new sentences", "#D55E00", "o-"),
    ("held_accuracy_after", "scrubbed, new sentences", "#56B4E9", "o-"),
    ("accuracy_after", "scrubbed, fitting sentences", "#0072B2", "s--"),
):
    axes[0].plot(labels, [getattr(row, name) for row in found.rows], style, color=color, lw=2, label=title)
axes[0].axhline(found.majority, color="black", lw=1, ls=":")
axes[0].text(0, found.majority - 0.06, "majority", fontsize=10)
axes[0].set_ylim(0, 1.1)
axes[0].set_ylabel("accuracy of a linear probe")
axes[0].set_title("Part of speech, before each block")
axes[0].legend(loc="center right", bbox_to_anchor=(1, 0.68), fontsize=11)
colors = ["#999999", "#E69F00", "#0072B2"]
bars = axes[1].bar([name.replace(" ", "\n", 1) for name in loss], list(loss.values()), color=colors, width=0.6)
axes[1].bar_label(bars, fmt="%.2f", padding=2)
axes[1].set_ylabel("loss on new sentences (nats per word)")
axes[1].set_title("What was erased?")
axes[1].margins(y=0.12)
plt.show()

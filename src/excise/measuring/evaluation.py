"""What scrubbing did to a language model: its loss, its accuracy and its distance from the clean model, on held-out text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

import numpy as np
import torch

from excise.errors import InputError
from excise.measuring.figures import Evaluation, EvaluationTable, Tally
from excise.measuring.kinds import check_kind, kind_of, require_head
from excise.measuring.unigram import Unigram
from excise.progress import Progress
from excise.scrubbing.capture import evaluating, model_inputs

__all__ = ["evaluate", "evaluate_each"]

SCORES_AT_ONCE = 2**23  # logits that are raised to float64 and turned into probabilities at a time


def evaluate(
    model: torch.nn.Module,
    batches: Iterable[Mapping[str, Any]],
    scrubber: Any = None,
    kind: str | None = None,
    mask_share: float = 0.15,
    seed: int = 0,
    progress: bool = True,
) -> Evaluation:
    """Loss, bits per UTF-8 byte, perplexity and accuracy of a language model, as it is or under a scrubber.

    A causal model predicts every attended token from those before it; the first of a sequence is given, not predicted
    (`excise tag` puts a start token there, so that all bytes of the text are predicted). Bits per byte are the nats of all
    predicted tokens, over ln 2, over the bytes of these tokens. A masked model predicts `mask_share` of the tokens of the text,
    all replaced by the mask token, and then every token of the text with nothing masked (its figures by label are of these).

    Args:
        model: with a language-modelling head.
        batches: dicts of input_ids (B, T), attention_mask; `bytes` (B, T) for bits per byte; `concept` (B, T) for the figures by
            label of the predicted token; `special` (B, T) for what must not be masked. As `TaggedText.batches` gives them.
        scrubber: adds KL(clean || scrubbed), at the price of a second pass.
        kind: "causal" or "masked"; see `kind_of` for how it is found unless given.
        mask_share, seed: which tokens of a masked model's text are masked; the same whatever the batch size.
        progress: show a bar on the terminal.

    Raises:
        InputError: no language-modelling head, no batches, ids beyond the vocabulary, no mask token.
    """
    name = "none" if scrubber is None else str(getattr(scrubber, "about", {}).get("method", "scrubbed"))
    rows = evaluate_each(model, batches, {name: scrubber}, None, kind, mask_share, seed, progress).rows
    return rows[0]


def evaluate_each(
    model: torch.nn.Module,
    batches: Iterable[Mapping[str, Any]],
    scrubbers: Mapping[str, Any],
    unigram: Unigram | None = None,
    kind: str | None = None,
    mask_share: float = 0.15,
    seed: int = 0,
    progress: bool = True,
) -> EvaluationTable:
    """One row per scrubber (None: the clean model) on the same text, and one for the unigram baseline where given.

    The clean model runs once per batch, whatever the number of scrubbers. Arguments as for `evaluate`.
    """
    check_kind(kind)
    size = _vocabulary(model)
    _check_ids(getattr(getattr(batches, "data", None), "input_ids", None), size)  # all of them, where they are known
    mask_token = getattr(batches, "mask_token_id", None)
    rows = {name: (Tally(), Tally()) for name in [*scrubbers, *(["unigram"] if unigram else [])]}  # masked, not masked
    done = 0
    bar = Progress(len(batches) if isinstance(batches, Sized) else None, "evaluating", "batches", progress)
    for number, given in enumerate(bar.over(batches)):
        batch = {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in given.items()}
        _check_ids(batch["input_ids"], size)
        if kind is None:
            kind = kind_of(model, batch)
        if kind == "masked":
            if mask_token is None:
                raise InputError("a masked language model needs the id of the mask token: use TaggedText.batches")
            chosen = _chosen(batch, mask_share, seed, done)
            masked = {**batch, "input_ids": torch.as_tensor(batch["input_ids"]).masked_fill(chosen, mask_token)}
            settings = [(masked, chosen), (batch, _of_text(batch))]
        else:
            present = _present(batch)
            counted = torch.zeros_like(present)
            counted[:, 1:] = present[:, 1:] & present[:, :-1]  # nothing is predicted from padding, on whichever side
            settings = [(batch, counted)]
        for setting, (inputs, counted) in enumerate(settings):
            tallies = [pair[setting] for pair in rows.values()]
            _measure(model, inputs, batch, counted, kind, scrubbers, unigram, tallies, number)
        done += len(batch["input_ids"])
    if not done:
        raise InputError("there are no batches: the data set is empty")
    names = getattr(batches, "names", None)
    assert kind is not None
    return EvaluationTable([_row(name, kind, pair, names) for name, pair in rows.items()], {"seed": seed})


def _measure(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    batch: Mapping[str, Any],
    counted: torch.Tensor,
    kind: str,
    scrubbers: Mapping[str, Any],
    unigram: Unigram | None,
    tallies: list[Tally],
    number: int,
) -> None:
    """Add one batch to the tally of every scrubber, in order, and of the baseline."""
    targets = torch.as_tensor(batch["input_ids"])[counted]
    where = counted.numpy()
    size = None if batch.get("bytes") is None else np.asarray(batch["bytes"])
    labels = _labels(batch)
    with evaluating(model):
        clean = _logits(model, inputs, counted, kind)
        for scrubber, tally in zip(scrubbers.values(), tallies, strict=False):
            if scrubber is None:
                scores = _scores(clean, targets, None)
            else:
                with scrubber.attached(model, concept=batch.get("concept"), first_draw=number):
                    scrubbed = _logits(model, inputs, counted, kind)
                scores = _scores(scrubbed, targets, clean)
            tally.add(where, *scores, size, labels)
    if unigram is not None:
        tallies[-1].add(where, *unigram.scores(targets.numpy()), None, size, labels)


def _row(name: str, kind: str, pair: tuple[Tally, Tally], names: Any) -> Evaluation:
    first, second = pair
    if not first.tokens:
        raise InputError("no token is predicted: the sequences have one token each, or none was masked")
    figures = first.figures()
    if kind == "causal":
        more: dict[str, Any] = {"perplexity": float(np.exp(figures["loss"]))}
    else:
        figures.pop("bits_per_byte", None)  # the chance of a masked token given both sides is no code length
        figures.pop("bits_per_byte_se", None)
        plain = second.figures()
        more = {f"unmasked_{key}": plain[key] for key in ("loss", "loss_se", "accuracy", "accuracy_se")}
        more["unmasked_kl"] = plain.get("kl")
    tally = first if kind == "causal" else second
    return Evaluation(name=name, kind=kind, **figures, **more, by_label=tally.by_label(names))


def _vocabulary(model: torch.nn.Module) -> int:
    """Rows of the input embeddings.

    Raises:
        InputError: the model has no language-modelling head.
    """
    require_head(model)
    return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]


def _check_ids(ids: Any, size: int) -> None:
    if ids is not None and len(ids) and int(ids.max()) >= size:
        raise InputError(
            f"token {int(ids.max())} is beyond the model's vocabulary of {size}: the data set was tagged with another tokenizer"
        )


def _present(batch: Mapping[str, Any]) -> torch.Tensor:
    mask = batch.get("attention_mask")
    ids = torch.as_tensor(batch["input_ids"])
    return torch.ones_like(ids, dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool().clone()


def _of_text(batch: Mapping[str, Any]) -> torch.Tensor:
    special = batch.get("special")
    present = _present(batch)
    return present if special is None else present & ~torch.as_tensor(special)


def _chosen(batch: Mapping[str, Any], share: float, seed: int, done: int) -> torch.Tensor:
    """Tokens of the text to mask. Each sequence draws from its own generator, so that batches may be of any size."""
    of_text = _of_text(batch)
    chance = np.stack([np.random.default_rng([seed, done + i]).random(of_text.shape[1]) for i in range(len(of_text))])
    return of_text & torch.from_numpy(chance < share)


def _labels(batch: Mapping[str, Any]) -> Any:
    """(B, T) codes; None where the concept is a number, or absent."""
    concept = batch.get("concept")
    if concept is None:
        return None
    if np.asarray(concept).dtype.kind in "USO":
        return None
    codes, ids = torch.as_tensor(concept), torch.as_tensor(batch["input_ids"])
    if codes.is_floating_point() or codes.ndim > 2:
        return None
    return (codes[:, None].expand(ids.shape) if codes.ndim == 1 else codes).numpy()


def _logits(model: torch.nn.Module, inputs: Mapping[str, Any], counted: torch.Tensor, kind: str) -> torch.Tensor:
    """(m, v) logits for the counted tokens, in order: of the position itself, or of the one before it."""
    logits: torch.Tensor = model(**model_inputs(model, inputs)).logits
    at = counted.to(logits.device)
    return logits[:, :-1][at[:, 1:]] if kind == "causal" else logits[at]


def _scores(logits: torch.Tensor, targets: torch.Tensor, clean: torch.Tensor | None) -> tuple[Any, Any, Any]:
    """Nats lost on each target, whether it was the first choice, and KL(clean || these)."""
    nats, hits, kl = [], [], []
    rows = max(1, SCORES_AT_ONCE // logits.shape[-1])
    for at in range(0, len(logits), rows):
        part = logits[at : at + rows]
        wanted = targets[at : at + rows].to(part.device)
        # Sums over 50,000 tokens in float32 are off by 2e-6 of the loss, always to the same side.
        logp = part.double().log_softmax(-1)
        nats.append(-logp.gather(1, wanted[:, None])[:, 0])
        hits.append(part.argmax(-1) == wanted)
        if clean is not None:
            reference = clean[at : at + rows].double().log_softmax(-1)
            kl.append((reference.exp() * (reference - logp)).sum(-1))
    joined = [torch.cat(parts).cpu().numpy() if parts else None for parts in (nats, hits, kl)]
    return joined[0], joined[1], joined[2]

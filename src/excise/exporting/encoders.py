"""Sentence encoders that carry their eraser: a layer between pooling and normalisation, saved with the encoder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from excise.erasers.affine import AffineEraser
from excise.errors import ConceptError, ExciseError, InputError, missing_extra, warn
from excise.numerics.arrays import host

__all__ = ["add_to_encoder", "encoder_features"]


def add_to_encoder(encoder: Any, eraser: Any, exact: bool = False) -> Any:
    """Put an eraser into a `SentenceTransformer`, in front of its normalisation; the encoder is changed and returned.

    By default the layer is a stock `Dense` with W = P and the bias of the eraser, so the saved encoder loads anywhere.
    Its numbers are those of the encoder's dtype. With `exact` it is a layer of excise with float64 factors: the erased
    direction then holds no trace of the concept, but loading needs excise and, from sentence-transformers 6,
    `SentenceTransformer(folder, trust_remote_code=True)`.

    If the encoder normalises, the guarantee holds for what it gives out only if the eraser was fitted with
    `normalize=True`. Such an eraser also adds the normalisation where the encoder has none.

    Args:
        encoder: a SentenceTransformer.
        eraser: an AffineEraser, fitted on `encoder_features(encoder, texts)`.
        exact: use the layer of excise instead of `Dense`.

    Raises:
        ConceptError: the eraser needs labels when it is applied.
        InputError: it was fitted on another number of features than the encoder gives out.
        ExciseError: not a SentenceTransformer, or not an affine eraser.
    """
    at = _position(encoder)
    if getattr(eraser, "needs_labels", False):
        raise ConceptError(
            f"a {type(eraser).__name__} needs the label of every text when it is applied: an encoder has none; fit "
            f"method='leace'",
            code="needs-labels",
        )
    if not isinstance(eraser, AffineEraser):
        raise ExciseError(
            f"expected an AffineEraser, got {type(eraser).__name__}: fit one with excise.fit", code="not-affine"
        )
    width = _width(encoder)
    if width is not None and width != eraser.d:
        raise InputError(
            f"the eraser has {eraser.d} features, the encoder gives out {width}: fit it on encoder_features(encoder, texts)",
            code="feature-count",
        )
    modules = list(encoder._modules.items())
    normalised_after = at < len(modules)
    layers = [_exact_layer(eraser) if exact else _dense(encoder, eraser)]
    if eraser.normalize and not normalised_after:
        layers.append(_stock("Normalize")())
    if normalised_after and not eraser.normalize:
        warn(
            "the encoder divides by the length after the eraser, and the eraser was not fitted for that: a linear classifier "
            "may find the concept again in the unit vectors; fit it with normalize=True",
            code="normalised-after",
        )
    for layer in layers:
        layer.to(encoder.device)
        layer.train(encoder.training)
    kept = [module for _, module in modules]
    encoder._modules = OrderedDict((str(i), module) for i, module in enumerate([*kept[:at], *layers, *kept[at:]]))
    return encoder


def encoder_features(encoder: Any, texts: Sequence[str], batch_size: int = 32, prompt_name: str | None = None) -> Any:
    """(n, d) float32 embeddings at the place where `add_to_encoder` puts the eraser: before the normalisation.

    Raises:
        ExciseError: not a SentenceTransformer.
    """
    at = _position(encoder)
    first = type(encoder)(
        modules=list(encoder._modules.values())[:at],
        device=str(encoder.device),
        prompts=dict(encoder.prompts),
        default_prompt_name=encoder.default_prompt_name,
    )
    mode = encoder.training
    try:
        found: Any = first.encode(
            list(texts), batch_size=batch_size, prompt_name=prompt_name, show_progress_bar=False, convert_to_numpy=True
        )
    finally:
        encoder.train(mode)
    return np.asarray(found, dtype=np.float32)


def _position(encoder: Any) -> int:
    """Number of the first of the normalisations that end the encoder; the number of its modules where there are none."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise missing_extra("encoders need sentence-transformers, which is not installed", "encoders") from None
    if not isinstance(encoder, SentenceTransformer):
        raise ExciseError(
            f"expected a SentenceTransformer, got {type(encoder).__name__}: wrap a transformer with Transformer and Pooling "
            f"modules first, or use scrubber.fold for a language model",
            code="not-an-encoder",
        )
    modules = list(encoder._modules.values())
    at = len(modules)
    while at and type(modules[at - 1]).__name__ == "Normalize":
        at -= 1
    return at


def _width(encoder: Any) -> int | None:
    for name in ("get_embedding_dimension", "get_sentence_embedding_dimension"):
        if hasattr(encoder, name):
            found = getattr(encoder, name)()
            return None if found is None else int(found)
    return None


def _stock(name: str) -> Any:
    import importlib

    try:
        modules = importlib.import_module("sentence_transformers.base.modules")
    except ImportError:  # before sentence-transformers 5.4
        modules = importlib.import_module("sentence_transformers.models")
    return getattr(modules, name)


def _dense(encoder: Any, eraser: AffineEraser) -> Any:
    dtype = next((p.dtype for p in encoder.parameters() if p.is_floating_point()), torch.float32)
    P, bias = (torch.from_numpy(np.array(host(part))).to(dtype) for part in (eraser.P, eraser.bias))
    for part in (P, bias):
        if not bool(part.isfinite().all()):
            raise InputError(f"the eraser has numbers beyond the range of {dtype}", code="out-of-range")
    keeps_mean = bool(bias.any())
    return _stock("Dense")(
        eraser.d, eraser.d, bias=keeps_mean, activation_function=torch.nn.Identity(), init_weight=P, init_bias=bias
    )


def _exact_layer(eraser: AffineEraser) -> Any:
    from excise.exporting.encoder_layer import EraserLayer

    return EraserLayer(eraser)

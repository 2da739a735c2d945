"""scrub: fit an eraser at every site of a model, block by block, on states that carry all earlier erasers."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from excise._array import host
from excise.eraser import AffineEraser
from excise.errors import ExciseError, ExciseWarning, InputError
from excise.fitting import Method, check_method, fit_moments
from excise.methods.leace import leace
from excise.methods.sal import concept_rank
from excise.moments import Moments
from excise.scrubbing.cache import Cache, choose
from excise.scrubbing.capture import evaluating
from excise.scrubbing.controls import RandomEraser
from excise.scrubbing.identity import check_identity, identify
from excise.scrubbing.labels import Data, Labels
from excise.scrubbing.passes import Passes
from excise.scrubbing.scrubber import STATE, Eraser, Scrubber, read_state, write_state
from excise.scrubbing.sites import Group, Layout, Sites, find_sites

__all__ = ["scrub"]


def scrub(
    model: torch.nn.Module,
    batches: Iterable[Mapping[str, Any]],
    method: str = "leace",
    sites: Sites = None,
    cache: str = "auto",
    resume: str | os.PathLike[str] | None = None,
    progress: bool = True,
    sequential: bool = True,
    **options: Any,
) -> Scrubber:
    """Erase a concept at every site of a transformer.

    Args:
        model: a decoder-only or encoder-only Hugging Face model; it is left as it was.
        batches: an iterable that can be started again, of dicts: input_ids (B, T), attention_mask, concept, and whatever
            else the model's forward takes by name. concept: (B, T) integer classes, -100 where none; (B, T, k) numbers;
            or (B,) one class per sequence.
        method: "leace", "sal", "mean_projection", "fair_pca", "oracle", "random", "inlp" or "rlace". The last two hold
            the activations of a site in memory: 8 n d bytes, and as much again while they work.
        sites: see `find_sites`; None for the tensor that each attention and each MLP reads.
        cache: where hidden states are kept between blocks: "gpu", "ram", "disk", "none" (recomputed), or "auto".
        resume: a folder; each finished block is saved there, and a run that was stopped goes on after the last one.
        sequential: False fits all sites on the clean model, for comparison.
        options: of the method, e.g. strength=0.5 or limit_norm=True.

    Raises:
        ExciseError: bad input, before any work; NaN in the activations, with the first site where they appear.
    """
    found = _check_method(method, options)
    data = Data(batches)
    assert data.first is not None
    with evaluating(model):
        layout = find_sites(model, data.first, sites)
        if not sequential or method == "random":
            layout = _one_level(layout)
        scrubber = _start(model, data, layout, method, options, sequential)
        arguments = {"data": data.fingerprint, "threads": torch.get_num_threads(), **scrubber.about["arguments"]}
        if resume is not None:
            _take_up(scrubber, model, Path(resume), arguments)
        size = sum(B * T for B, T in data.sizes) * layout.width * layout.dtype.itemsize
        device = next(model.parameters()).device
        mode = choose(cache, size, device, resume, layout.chained)
        sizes = [B * T * layout.width * layout.dtype.itemsize for B, T in data.sizes]
        bar = _Bar(layout, data.tokens, progress)
        bar.say(f"cache: {mode}" + ("" if mode == "none" else f", {size / 1e6:,.1f} MB for {data.tokens:,} tokens"))
        with Cache(mode, sizes, layout.dtype, resume if mode == "disk" else None) as store, bar:
            passes = Passes(model, data, layout, store, bar.tick)
            _fit_all(passes, scrubber, found, method, options, sequential, bar, resume, arguments)
    if resume is not None:
        write_state(resume, scrubber, complete=True, more=arguments)
    return scrubber


def _check_method(method: str, options: dict[str, Any]) -> Method:
    found = check_method(method, options)
    if found.takes in ("task", "class moments"):
        raise ExciseError(f"method {method!r} cannot scrub a model: it needs more than one label per token")
    return found


def _one_level(layout: Layout) -> Layout:
    """No site waits for another: all are fitted on the clean model."""
    groups = tuple(Group(group.block, (group.paths,), None) for group in layout.groups)
    return Layout(layout.blocks, groups, layout.chained, layout.parts, layout.width, layout.dtype)


def _start(
    model: torch.nn.Module, data: Data, layout: Layout, method: str, options: dict[str, Any], sequential: bool
) -> Scrubber:
    arguments = {
        "method": method,
        "options": {name: value if _is_plain(value) else repr(value) for name, value in options.items()},
        "sites": list(layout.paths),
        "sequential": sequential,
    }
    about = {
        "method": method,
        "arguments": arguments,
        "tokens": data.tokens,
        "labelled": data.kept,
        "concept": data.concept.to_dict(),
        "blocks": len(layout.blocks),
        "seconds": {"passes": 0.0, "solves": 0.0},
    }
    return Scrubber({}, {}, identify(model, layout.paths), about)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _take_up(scrubber: Scrubber, model: torch.nn.Module, folder: Path, arguments: dict[str, Any]) -> None:
    """Erasers of the blocks that an earlier run has finished.

    Raises:
        ExciseError: that run had other arguments, other data or another model.
    """
    if not (folder / STATE).exists():
        write_state(folder, scrubber, complete=False, more=arguments)
        return
    old, state = read_state(folder)
    check_identity(model, old.identity, f"the run in {folder}")
    for name, value in arguments.items():
        if name != "threads" and state["run"].get(name) != value:
            raise ExciseError(
                f"{folder} belongs to another run: its {name} is {state['run'].get(name)!r}, now {value!r}; pass another "
                f"folder, or the same arguments and data"
            )
    scrubber.erasers |= old.erasers
    scrubber.figures |= old.figures
    scrubber.about["seconds"] = old.about["seconds"]


def _fit_all(
    passes: Passes,
    scrubber: Scrubber,
    found: Method,
    method: str,
    options: dict[str, Any],
    sequential: bool,
    bar: _Bar,
    resume: Any,
    arguments: dict[str, Any],
) -> None:
    erasers = scrubber.erasers
    seconds = scrubber.about["seconds"]
    notes: dict[str, list[str]] = {}
    for number, group in enumerate(passes.layout.groups):
        bar.block(number + 1)
        if all(path in erasers for path in group.paths):
            continue
        began = time.perf_counter()
        at_work = erasers if sequential and method != "random" else {}
        passes.advance(group.block, at_work)
        for level in group.levels:
            sums = {path: _Sum(path, found, passes.data) for path in level}
            passes.gather(group, level, at_work, lambda path, x, labels, sums=sums: sums[path].add(x, labels))  # type: ignore[misc]
            seconds["passes"] += time.perf_counter() - began
            began = time.perf_counter()
            for path in level:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    erasers[path], scrubber.figures[path] = sums.pop(path).solve(method, options)
                for warning in caught:
                    notes.setdefault(str(warning.message), []).append(path)
            seconds["solves"] += time.perf_counter() - began
            began = time.perf_counter()
        if resume is not None:
            write_state(resume, scrubber, complete=False, more=arguments)
    if method == "random":
        widest = max(eraser.rank for eraser in erasers.values())
        for path, eraser in erasers.items():
            assert isinstance(eraser, RandomEraser)
            erasers[path] = RandomEraser(eraser.d, eraser.rank, widest, eraser.seed, eraser.strength, eraser.info)
    for text, paths in notes.items():
        where = f"at {paths[0]}" + (f" and {len(paths) - 1} other sites" if len(paths) > 1 else "")
        warnings.warn(f"{where}: {text}", ExciseWarning, stacklevel=3)


class _Sum:
    """What is gathered at a site: moments, or the rows themselves for the methods that train on them."""

    def __init__(self, path: str, found: Method, data: Data) -> None:
        self.path, self.data = path, data
        self.arrays = found.takes == "arrays"
        self.moments = Moments(concept=data.concept, track_xx=found.function.__name__ != "_random")
        self.rows: list[Any] = []
        self.labels: list[Any] = []

    def add(self, x: torch.Tensor, labels: Labels) -> None:
        rows = x.detach().reshape(-1, x.shape[-1])
        if len(rows) != len(labels.keep):
            raise InputError(f"at {self.path}: {len(rows)} vectors for {len(labels.keep)} tokens; choose another site")
        if not labels.keep.any():
            return
        if not labels.keep.all():
            rows = rows[torch.from_numpy(labels.keep).to(rows.device)]
        if self.arrays:
            self.rows.append(host(rows))
            self.labels.append(labels.values)
            return
        try:
            self.moments.update(rows, labels.values)
        except InputError as error:
            raise InputError(f"at {self.path}: {error}") from None

    def solve(self, method: str, options: dict[str, Any]) -> tuple[Eraser, dict[str, Any]]:
        try:
            return self._solve(method, options)
        except ExciseError as error:
            raise type(error)(f"at {self.path}: {error}") from None

    def _solve(self, method: str, options: dict[str, Any]) -> tuple[Eraser, dict[str, Any]]:
        eraser: Any
        if method == "random":
            rank = options.get("rank")
            d = self.moments.d
            assert d is not None
            rank = concept_rank(self.moments) if rank is None else rank
            seed, strength = options.get("seed", 0), options.get("strength", 1.0)
            eraser = RandomEraser(d, min(d, rank), min(d, rank), seed, strength, {"method": "random"})
            return eraser, {
                "rank": eraser.rank,
                "canonical_correlation": None,
                "spectral_norm": None,
                "trace_ratio": None,
            }
        if self.arrays:
            X, z = np.concatenate(self.rows), np.concatenate(self.labels)
            from excise.fitting import fit

            eraser = fit(X, z, method, kind="categorical" if z.ndim == 1 else "continuous", **options)
            before = eraser.info.get("canonical_before")
            return eraser, _figures(eraser, before, Moments(concept=self.data.concept).update(X, z))
        eraser = fit_moments(self.moments, method, **options)
        if method == "leace" and options.get("shrinkage", "none") == "none":
            canonical = eraser.info["canonical_correlations"]
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                canonical = leace(self.moments).info["canonical_correlations"]
        return eraser, _figures(eraser, max(canonical, default=0.0), self.moments)


def _figures(eraser: Any, canonical: float | None, m: Moments) -> dict[str, Any]:
    affine = isinstance(eraser, AffineEraser)
    return {
        "rank": eraser.rank,
        "canonical_correlation": canonical,
        "spectral_norm": eraser.spectral_norm if affine else None,
        "trace_ratio": _trace_ratio(eraser, m) if affine else None,
    }


def _trace_ratio(eraser: AffineEraser, m: Moments) -> float:
    """tr(P S P^T) / tr(S) with P = I - U V^T, in O(d^2 r)."""
    S, U, V = host(m.cov_xx), host(eraser.left), host(eraser.right)
    total = float(np.trace(S))
    SV = S @ V
    change = -2.0 * float((SV * U).sum()) + float(((V.T @ SV) * (U.T @ U)).sum())
    return 1.0 + change / total if total > 0 else 1.0


class _Bar:
    """Progress on stderr: "(3/12) blocks", tokens per second, time left. Quiet when there is no terminal."""

    def __init__(self, layout: Layout, tokens: int, progress: bool) -> None:
        self.blocks = len(layout.groups)
        self.quiet = not progress or not sys.stderr.isatty()
        self.bar: Any = nullcontext()
        if not self.quiet:
            try:
                from tqdm import tqdm
            except ModuleNotFoundError:
                self.quiet = True
                return
            passes = sum(len(group.levels) + (group.tail is None) for group in layout.groups) - 1
            self.bar = tqdm(
                total=tokens * max(1, passes), unit=" tokens", unit_scale=True, desc=f"(0/{self.blocks}) blocks"
            )

    def say(self, text: str) -> None:
        if not self.quiet:
            self.bar.write(text, file=sys.stderr)

    def block(self, number: int) -> None:
        if not self.quiet:
            self.bar.set_description(f"({number}/{self.blocks}) blocks")

    def tick(self, tokens: int) -> None:
        if not self.quiet:
            self.bar.update(tokens)

    def __enter__(self) -> _Bar:
        self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)

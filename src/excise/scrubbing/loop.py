"""scrub: fit an eraser at every site of a model, block by block, on states that carry all earlier erasers."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from excise.errors import ExciseError, warn
from excise.methods.table import Method, check_method
from excise.numerics.chunks import quiet_pools
from excise.progress import Progress
from excise.scrubbing.batches import Data
from excise.scrubbing.cache import Cache, choose
from excise.scrubbing.capture import evaluating
from excise.scrubbing.folder import holds_scrubber, read_folder, write_folder
from excise.scrubbing.identity import check_identity, identify
from excise.scrubbing.passes import Passes
from excise.scrubbing.scrubber import Scrubber
from excise.scrubbing.site_fit import SiteFit
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
    group: Any = None,
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
        group: of torch.distributed, e.g. torch.distributed.group.WORLD: every rank calls scrub with its share of the
            batches, moments are added up over the ranks, and all get the same erasers.
        options: of the method, e.g. strength=0.5 or limit_norm=True.

    Raises:
        ExciseError: bad input, before any work; NaN in the activations, with the first site where they appear.
    """
    found = _check_method(method, options)
    if group is not None:
        _check_group(method, found, resume)
    data = Data(batches, group)
    assert data.first is not None
    with evaluating(model):
        layout = find_sites(model, data.first, sites)
        if not sequential or found.redrawn:
            layout = _one_level(layout)
        scrubber = _start(model, data, layout, method, options, sequential)
        if resume is not None:
            _resume(scrubber, model, Path(resume))
        sizes = [B * T * layout.width * layout.dtype.itemsize for B, T in data.sizes]
        mode = choose(cache, sum(sizes), next(model.parameters()).device, resume, layout.chained)
        passes_over_data = sum(len(group.levels) + (group.tail is None) for group in layout.groups) - 1
        bar = Progress(data.tokens * max(1, passes_over_data), "blocks", "tokens", progress)
        bar.say(
            f"cache: {mode}, {sum(sizes) / 1e6:,.1f} MB for {data.tokens:,} tokens" if mode != "none" else "no cache"
        )
        with Cache(mode, sizes, layout.dtype, resume) as store, bar:
            passes = Passes(model, data, layout, store, bar.advance)
            _fit_all(passes, scrubber, found, options, bar, resume, group)
    if resume is not None:
        write_folder(resume, scrubber, known=len(scrubber.erasers))
    return scrubber


def _check_method(method: str, options: dict[str, Any]) -> Method:
    found = check_method(method, options)
    for name in ("y", "kind", "progress"):
        if name in options:
            raise ExciseError(f"scrub has no option {name!r} for method {method!r}")
    if found.uses_task == "must" or found.needs_with(options) == "class moments":
        raise ExciseError(f"method {method!r} cannot scrub a model: it needs more than one label per token")
    return found


def _check_group(method: str, found: Method, resume: Any) -> None:
    if found.needs == "rows":
        raise ExciseError(f"method {method!r} trains on rows, which several ranks do not share: scrub with one rank")
    if resume is not None:
        raise ExciseError("resume= is for one rank: save the scrubber of rank 0 at the end")


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
        "data": data.fingerprint,
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


def _resume(scrubber: Scrubber, model: torch.nn.Module, folder: Path) -> None:
    """Erasers of the blocks that an earlier run has finished.

    Raises:
        ExciseError: that run had other arguments, other data or another model.
    """
    if not holds_scrubber(folder):
        write_folder(folder, scrubber, complete=False)
        return
    old, _ = read_folder(folder)
    check_identity(model, old.identity, f"the run in {folder}")
    for name, now in scrubber.about["arguments"].items():
        before = old.about["arguments"].get(name)
        if before != now:
            raise ExciseError(
                f"{folder} belongs to another run: its {name} is {before!r}, now {now!r}; pass another folder, or the same "
                f"arguments and data"
            )
    scrubber.erasers |= old.erasers
    scrubber.figures |= old.figures
    scrubber.about["seconds"] = old.about["seconds"]


def _fit_all(
    passes: Passes, scrubber: Scrubber, found: Method, options: dict[str, Any], bar: Progress, resume: Any, ranks: Any
) -> None:
    method, erasers, seconds = scrubber.about["method"], scrubber.erasers, scrubber.about["seconds"]
    at_work = erasers if scrubber.about["arguments"]["sequential"] and not found.redrawn else {}
    notes: dict[str, list[str]] = {}
    for number, group in enumerate(passes.layout.groups):
        bar.describe(f"({number + 1}/{len(passes.layout.groups)}) blocks")
        if all(path in erasers for path in group.paths):
            continue
        known = len(erasers)
        began = time.perf_counter()
        with quiet_pools():
            passes.advance(group.block, at_work)
        for level in group.levels:
            sums = {path: SiteFit(path, found, passes.data) for path in level}
            with quiet_pools():
                passes.gather(group, level, at_work, lambda path, x, labels, sums=sums: sums[path].add(x, labels))  # type: ignore[misc]
                for gathered in sums.values():
                    gathered.add_up()
                    if ranks is not None:
                        gathered.moments = gathered.moments.all_reduce(ranks)
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
            write_folder(resume, scrubber, complete=False, known=known)
    for text, paths in notes.items():
        where = f"at {paths[0]}" + (f" and {len(paths) - 1} other sites" if len(paths) > 1 else "")
        warn(f"{where}: {text}")

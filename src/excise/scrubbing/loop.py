"""scrub: fit an eraser at every site of a model, block by block, on states that carry all earlier erasers."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from excise.scrubbing.coverage import Look, with_status
from excise.scrubbing.folder import holds_scrubber, read_folder, write_folder
from excise.scrubbing.identity import check_identity, identify
from excise.scrubbing.inputs import model_inputs, names_taken
from excise.scrubbing.layout import Group, Layout
from excise.scrubbing.mixing import readers_of_several_tokens
from excise.scrubbing.passes import Passes
from excise.scrubbing.scrubber import Scrubber
from excise.scrubbing.sentences import text_batches
from excise.scrubbing.site_fit import SiteFit
from excise.scrubbing.sites import Sites, find_sites
from excise.scrubbing.stubs import Carried, find_carried
from excise.scrubbing.wrappers import check_weights, inner_transformer, refuse_compiled, unwrapped

__all__ = ["scrub"]


def scrub(
    model: Any,
    batches: Iterable[Any],
    method: str = "leace",
    sites: Sites = None,
    cache: str = "auto",
    resume: str | os.PathLike[str] | None = None,
    progress: bool = True,
    sequential: bool = True,
    labels: Any = None,
    where: str = "all",
    group: Any = None,
    **options: Any,
) -> Scrubber:
    """Erase a concept at every site of a transformer.

    Args:
        model: a Hugging Face model of text, images or sound, or a SentenceTransformer; it is left as it was. Wrappers
            (torch.compile, PEFT, data parallel) are looked through.
        batches: an iterable that can be started again, of dicts: what the model's forward takes by name (input_ids (B, T)
            and attention_mask, inputs_embeds, pixel_values, input_values, input_features, ...) and concept. For a
            SentenceTransformer: texts.
            concept: (B, T) integer or string classes, -100 where there is none; (B, T, k) numbers; or one per example:
            (B,) classes or numbers, (B, 1, k) numbers. T counts tokens, patches or frames. An encoder-decoder has
            `concept` for its encoder's tokens and `decoder_concept` for its decoder's, one of them or both.
        method: "leace", "sal", "mean_projection", "fair_pca", "oracle", "random", "inlp" or "rlace". The last two hold
            the activations of a site in memory: 8 n d bytes, and as much again while they work.
        sites: see `find_sites`; None for the tensor that each attention and each MLP reads.
        cache: where hidden states are kept between blocks: "gpu", "ram", "disk", "none" (recomputed), or "auto".
        resume: a folder; each finished block is saved there, and a run that was stopped goes on after the last one.
        progress: show a bar on the terminal.
        sequential: False fits all sites on the clean model, for comparison.
        labels: one label per text, where `batches` are the texts of a SentenceTransformer: strings, numbers, or (n, k).
        where: "all" applies the erasers to every token; "labelled" only to those that have a label, which then have to be
            given to `attached` too. It matters for concepts that few tokens have.
        group: of torch.distributed, e.g. torch.distributed.group.WORLD: every rank calls scrub with its share of the
            batches, moments are added up over the ranks, and all get the same erasers. Coverage is not
            measured then: no rank sees all tokens.
        options: of the method, e.g. strength=0.5 or limit_norm=True.

    Returns:
        The erasers. `scrubber.coverage` has what every matrix of the model still receives of the concept.

    Raises:
        ExciseError: bad input, before any work; NaN in the activations, with the first site where they appear.
    """
    found = _check_method(method, options)
    if group is not None:
        _check_group(method, found, resume)
    if where not in ("all", "labelled"):
        raise ExciseError(f"where must be 'all' or 'labelled', got {where!r}", code="where")
    if labels is not None or inner_transformer(model) is not None:
        batches = text_batches(model, batches, labels)
    model = unwrapped(model)
    refuse_compiled(model)
    check_weights(model)
    data = Data(batches, names_taken(model), model, group)
    assert data.first is not None
    with evaluating(model):
        layout = find_sites(model, data.first, sites)
        alone = not sequential or found.redrawn
        if alone:
            layout = _one_level(layout)
        scrubber = _start(model, data, layout, method, options, sequential, where)
        if resume is not None:
            _resume(scrubber, model, Path(resume))
        with _passes(model, data, layout, cache, resume, progress, not alone, where == "all") as (passes, bar):
            _fit_all(passes, scrubber, found, options, bar, resume, group)
        if passes.look is not None and group is None:
            _look(scrubber, passes.look, model, layout, by_default=sites is None)
    if resume is not None:
        write_folder(resume, scrubber, known=len(scrubber.erasers))
    return scrubber


@contextmanager
def _passes(
    model: torch.nn.Module,
    data: Data,
    layout: Layout,
    cache: str,
    folder: Any,
    progress: bool,
    look: bool,
    everywhere: bool,
) -> Iterator[tuple[Passes, Progress]]:
    """What runs the model over the data, with its cache."""
    carried = Carried() if cache == "none" else find_carried(model, layout, model_inputs(model, data.first or {}))
    size = sum(carried.size(B, layout.rows or T) for B, T in data.sizes)
    mode = choose(cache, size, next(model.parameters()).device, folder, carried.possible)
    if mode == "none" and cache != "none":
        warn(
            "the blocks of this model do not pass on hidden states alone, so none can be kept between them: every pass starts at "
            "the embeddings (cache='none'), which takes longer the more blocks there are",
            code="no-cache",
        )
    passes_over_data = sum(len(group.levels) + (group.tail is None) for group in layout.groups) - 1
    bar = Progress(data.tokens * max(1, passes_over_data), "blocks", "tokens", progress)
    bar.say(f"cache: {mode}, {size / 1e6:,.1f} MB for {data.tokens:,} tokens" if mode != "none" else "no cache")
    watch = Look(layout.targets, data.concepts, layout.extra) if look else None
    with Cache(mode, folder, carried.whole) as store, bar:
        yield Passes(model, data, layout, store, carried, watch, bar.advance, everywhere), bar


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
    return replace(layout, groups=groups)


def _start(
    model: torch.nn.Module,
    data: Data,
    layout: Layout,
    method: str,
    options: dict[str, Any],
    sequential: bool,
    where: str,
) -> Scrubber:
    arguments = {
        "method": method,
        "options": {name: value if _is_plain(value) else repr(value) for name, value in options.items()},
        "sites": list(layout.paths),
        "sequential": sequential,
        "where": where,
        "data": data.fingerprint,
    }
    about = {
        "method": method,
        "arguments": arguments,
        "tokens": data.tokens,
        "labelled": sum(data.kept.values()),
        **{name: concept.to_dict() for name, concept in data.concepts.items()},
        "blocks": len(layout.blocks),
        "sides": {path: side for path, side in layout.sides.items() if side != "concept"},
        "extra": layout.extra,
        "time_first": sorted(layout.time_first),
        "repeated": {path: [found.times, found.within] for path, found in layout.repeated.items()},
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
    layout, concepts = passes.layout, passes.data.concepts
    at_work = erasers if passes.look is not None else {}
    notes: dict[str, list[str]] = {}
    for number, group in enumerate(layout.groups):
        bar.describe(f"({number + 1}/{len(layout.groups)}) blocks")
        if all(path in erasers for path in group.paths):
            continue
        known = len(erasers)
        began = time.perf_counter()
        with quiet_pools():
            passes.advance(group.block, at_work, min(layout.moments[path] for path in group.levels[0]))
        for number_of_level, level in enumerate(group.levels):
            sums = {path: SiteFit(path, found, concepts[layout.sides[path]]) for path in level}
            with quiet_pools():
                passes.gather(
                    group,
                    number_of_level,
                    at_work,
                    lambda path, x, labels, sums=sums: sums[path].add(x, labels),  # type: ignore[misc]
                )
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
    began = time.perf_counter()
    with quiet_pools():
        passes.finish(at_work)
    seconds["passes"] += time.perf_counter() - began
    for text, paths in notes.items():
        where = f"at {paths[0]}" + (f" and {len(paths) - 1} other sites" if len(paths) > 1 else "")
        warn(f"{where}: {text}")


def _look(scrubber: Scrubber, look: Look, model: torch.nn.Module, layout: Layout, by_default: bool) -> None:
    """Keep what readers still receive, and say what should not be there."""
    coverage = look.table()
    if coverage.leaking:
        coverage = with_status(coverage, readers_of_several_tokens(model, layout.inputs, coverage.leaking))
    scrubber.coverage = coverage
    if not _guards(scrubber):
        return
    if coverage.leaking:
        row = max(coverage.leaking, key=lambda row: row.left or 0.0)
        warn(
            f"the concept is still linearly there in what {len(coverage.leaking)} matrices read behind sites that were erased; most "
            f"at {row.reader} (correlation {row.left:.3g}, site {row.site}): see scrubber.coverage",
            code="leak",
        )
    advice = coverage.advice(list(scrubber.erasers)) if by_default else None
    if advice is not None:
        warn(advice, code="missed-readers")


def _guards(scrubber: Scrubber) -> bool:
    """Whether nothing of the concept should be left at a site."""
    options = scrubber.about["arguments"]["options"]
    exact = scrubber.about["method"] in ("leace", "oracle", "sal", "mean_projection", "fair_pca")
    return exact and options.get("strength", 1.0) == 1.0 and options.get("rank") is None

"""Norm growth: the ratio of total variance after and before the eraser, by site; when does the limit fire?"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from excise.experiments.language import causal_models, load, pile
from excise.experiments.running import Finding, Outcome, Run
from excise.reporting.svg import COLOURS, LINES, MARKERS

__all__ = ["PAPER", "experiment"]

PAPER = "Appendix: at some layers of some models LEACE let the norm of the hidden states diverge; the limit mixes P with an orthogonal projection."
PAPER_MODELS = ["EleutherAI/pythia-160m"]
SETTINGS = ("plain", "limited", "oas", "oas limited", "float16")


def experiment(run: Run, options: Any) -> Outcome:
    """pocket-neox on UD EWT where local folders are given."""
    named = causal_models(options, PAPER_MODELS)[0]
    sizes = (1_500, 1_000) if run.quick else (60_000, 20_000)
    at = load(run, options, named, sizes, pile)
    found = {name: run.step(f"{named.name}: {name}", partial(_measure, at, name, run)) for name in SETTINGS}
    rows = [
        [name, site, ratio, held, norm, mix]
        for name, f in found.items()
        for site, ratio, held, norm, mix in zip(f["sites"], f["ratio"], f["held"], f["norm"], f["mix"], strict=True)
    ]
    plain, limited = found["plain"], found["limited"]
    fired = {name: sum(mix < 1 for mix in f["mix"]) for name, f in found.items()}
    findings = [
        Finding(
            "without shrinkage, total variance on the fitting tokens never grows, so the limit never fires",
            max(plain["ratio"]) <= 1 + 1e-6 and fired["limited"] == 0,
            theorem=True,
            note=f"greatest ratio {max(plain['ratio']):.4f}",
        ),
        Finding(
            "with the limit, total variance on the fitting tokens never grows, shrinkage or not",
            max(*limited["ratio"], *found["oas limited"]["ratio"]) <= 1 + 1e-6,
            theorem=True,
        ),
        Finding(
            "under shrinkage the limit fires somewhere",
            fired["oas limited"] > 0,
            note=f"at {fired['oas limited']} of {len(plain['sites'])} sites",
        ),
        Finding(
            "on held-out text total variance grows somewhere",
            max(plain["held"]) > 1,
            note=f"greatest ratio {max(plain['held']):.4f}",
        ),
        Finding(
            "applied in half precision, total variance grows on the fitting tokens",
            max(found["float16"]["ratio"]) > 1,
            note=f"greatest ratio {max(found['float16']['ratio']):.4f}",
        ),
    ]
    columns = [
        "setting",
        "site",
        "trace ratio, fitted",
        "trace ratio, held out",
        "spectral norm",
        "mix (1: limit did not fire)",
    ]
    return Outcome(columns, rows, findings, _draw(found), (9.5, 4.2), {"fired": fired, "model": named.name})


def _measure(at: Any, name: str, run: Run) -> dict[str, Any]:
    from excise.scrubbing.loop import scrub

    given: dict[str, Any] = {
        "limit_norm": "limited" in name,
        "shrinkage": "oas" if name.startswith("oas") else "none",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scrubber: Any = scrub(at.model, at.train.batches(8), progress=run.show, **given)
    half = name == "float16"
    fitted, held = (_ratios(at, scrubber, data, half) for data in (at.train, at.test))
    sites = list(scrubber.erasers)
    return {
        "sites": sites,
        "ratio": [fitted[site] for site in sites],
        "held": [held[site] for site in sites],
        "norm": [float(scrubber.erasers[site].spectral_norm) for site in sites],
        "mix": [float(scrubber.erasers[site].info["limit_norm_mix"]) for site in sites],
    }


def _ratios(at: Any, scrubber: Any, data: Any, half: bool) -> dict[str, float]:
    """tr Cov(r(x)) / tr Cov(x) at every site, over the states that arrive there with all earlier erasers at work."""
    from excise.scrubbing.capture import capture
    from excise.scrubbing.scrubber import Scrubber

    out: dict[str, float] = {}
    done: dict[str, Any] = {}
    for site, eraser in scrubber.erasers.items():
        with Scrubber(dict(done), {}, scrubber.identity, scrubber.about).attached(at.model):
            parts = []
            for batch in data.batches(8):
                keep = batch["concept"] != -100
                parts.append(capture(at.model, batch, [site])[site].cpu()[keep].numpy())
        before = np.concatenate(parts).astype(np.float16 if half else np.float32)
        after = np.asarray(eraser(before), dtype=np.float64)
        out[site] = float(after.var(axis=0).sum() / before.astype(np.float64).var(axis=0).sum())
        done[site] = eraser
    return out


def _draw(found: dict[str, Any]) -> Any:
    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for i, (name, f) in enumerate(found.items()):
            for axis, key in ((left, "ratio"), (right, "held")):
                axis.plot(
                    range(len(f["sites"])), f[key], marker=MARKERS[i], linestyle=LINES[i], color=COLOURS[i], label=name
                )
        for axis, title in ((left, "on the fitting tokens"), (right, "on held-out text")):
            axis.axhline(1, color="black", linestyle=":")
            axis.set(title=title, xlabel="site, in order")
        left.set_ylabel("total variance after / before")
        left.legend(frameon=False, fontsize=8)

    return draw

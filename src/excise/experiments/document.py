"""docs/reproduction.md from the results: our figures beside the paper's, what agrees, what does not."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from excise.experiments.reproducing import EXPERIMENTS
from excise.experiments.running import markdown

__all__ = ["document", "main"]

MOST_ROWS = 40
HEAD = """# The paper, reproduced

Made by `python -m excise.experiments.document` from the `result.json` of each experiment; do not edit. The experiments run on the paper's
own models and data by hub name (`excise reproduce NAME`), or offline on small stand-ins of the same kind
(`--data`, `--models`): the figures below are of these stand-ins, so only the signs and orders can be compared with the paper's, not the
sizes. What is a theorem must hold, or the command fails; findings are reported as measured.
"""


REMARKS = {
    "intrinsic": """Where the held-out loss stays below the constant's, estimation is the reason: the eraser is fitted on half of the rows
(2,500 of word2vec for 300 features, 277 wiki passages for 384), and leaves about d / n of linear information in others; SAL and RLACE
leave as much. INLP's rounds creep towards the same loss with larger edits. The edits of the table are on held-out rows; on the erasers'
own rows, which the theorem is about, LEACE's is the smallest of the affine ones (the table of statements). With 276 wiki passages for 384 features nearly
every direction is fitted to chance, and there SAL, which looks at covariances alone, moves new rows less. RLACE of rank 1 is 13 to 57 times slower, not 100: it
stops early here, and on so few rows LEACE's time is mostly fixed cost.""",
    "fairness": """The paper's pattern is found on Adult: the gap falls sharply with the classifier kept, and its correlation with the share of women goes
to zero; re-fitting brings back none of the gap that could be told from noise, unlike in the paper. In the wiki passages the groups are balanced within every occupation (shares of 0.44 to 0.54), so there is hardly a
correlation to remove, and 555 rows for 384 features make all of these figures noisy.""",
    "amnesic": """The figures are of inputs without masks, as in the paper; accuracy is high before because the model may copy. LEACE costs little at
every layer, random hardly anything, INLP (which stops at chance after 9 to 13 of its 20 rounds) removes 144 to 208 of 256 dimensions and
destroys the model. That INLP peaks at another layer than LEACE is not found: both are worst at the first layer of this model of six.
Held out, classifiers find part of speech again in part: 6,000 tokens are 23 per feature.""",
    "scrubbing": """The order is the paper's, in both models. Erasers fitted on the clean model leave the concept (the correlation is in the table of
statements), because later sites meet states that they were not fitted on; they do less damage than those fitted in sequence in the model of six
blocks; in the one of thirty the two are within their standard errors. These runs packed the text into windows of 256 tokens; the default is now
the paper's 2,048, or the model's context if that is shorter. INLP is fitted on 4,000 and 1,500 tokens only, since it holds all rows and is the slowest by far; it hurts
most, and its erasers take 10 to 16 times the bytes. The seconds to fit were taken while other work ran on the machine; those behind the cost
of the cache were not. These are ratios to one plain pass over the same
tokens: 8,000 of them, and 1,785 for SmolLM2, one batch, where fixed costs show; over 15,810 tokens caching took 1.5 to 1.7 plain passes there.""",
    "norm-growth": """Total variance cannot grow under the covariance that LEACE was fitted on, and neither held-out text nor shrinkage made it grow in
this model, so here the limit never fires. What does make norms explode is precision. The output of a LayerNorm has a direction in
which nothing varies but rounding errors; while erasers were still allowed to lean on it (a cut-off at float64's precision for
float32 activations), their spectral norms were 2e5 to 5e5, and applied in half precision they multiplied the total variance of
pocket-neox's states by 7 to 91. With the cut-off at the precision of the activations themselves the norms are below 3. The paper's
divergence "at specific layers in some models" may well have been this.""",
    "oracle": """The oracle moves each class by its own constant, so it leaves every other difference between the classes where it was. All probes are trained
and tested on rows that the eraser was not fitted on (the oracle is given their labels).""",
}


def document(results: Path) -> str:
    """Markdown from all results/NAME/result.json that there are."""
    parts = [HEAD]
    for name, (module, what) in EXPERIMENTS.items():
        path = results / name / "result.json"
        if not path.is_file():
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        paper = importlib.import_module(f"excise.experiments.{module}")
        parts.append(_section(name, what, result, paper.PAPER, REMARKS.get(name, "")))
    return "\n".join(parts)


def _section(name: str, what: str, result: dict[str, Any], paper: str, remarks: str) -> str:
    lines = [
        f"## `{name}`: {what}",
        "",
        f"**The paper.** {paper}",
        "",
        f"![{what}](../experiments/{name}/figure.svg)",
        "",
    ]
    rows = result["rows"]
    lines.append(markdown(result["columns"], rows[:MOST_ROWS]))
    if len(rows) > MOST_ROWS:
        lines.append(f"\n{len(rows) - MOST_ROWS} more rows are in [table.md](../experiments/{name}/table.md).")
    lines += ["", "| | statement | holds |", "|---|---|---|"]
    for finding in result["findings"]:
        note = f" ({finding['note']})" if finding["note"] else ""
        answer = ("yes" if finding["holds"] else "**no**") + note
        lines.append(f"| {'theorem' if finding['theorem'] else 'found'} | {finding['statement']} | {answer} |")
    if remarks:
        lines += ["", remarks]
    versions = ", ".join(f"{key} {value}" for key, value in result["versions"].items())
    sources = ", ".join(f"{key} ({value})" for key, value in result["data"].items()) or "none"
    hardware = f"{result['hardware']['processors']} processors, {result['hardware']['device']}"
    size = " at the quick size" if result["quick"] else ""
    lines += [
        "",
        f"Took {result['seconds']} s{size} on {hardware}; seed {result['seed']}; sources: {sources}; {versions}.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    results, target = (Path(argument) for argument in (arguments or ["experiments", "docs/reproduction.md"]))
    target.write_text(document(results), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

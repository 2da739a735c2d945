"""Write the small inventories that intersphinx reads, so that the site builds without a network.

    python docs/inventories/write.py

Each lists only names that our pages and docstrings mention. The format is version 2 of Sphinx's objects.inv.
"""

from __future__ import annotations

import zlib
from pathlib import Path

NUMPY = "reference/generated/{name}.html#$"
SKLEARN = "modules/generated/{name}.html#$"
INVENTORIES = {
    "python": {
        "library/exceptions.html#$": ["ValueError:py:exception", "UserWarning:py:exception", "OSError:py:exception"],
        "library/functions.html#$": ["int:py:class", "float:py:class", "bool:py:class", "object:py:class"],
        "library/stdtypes.html#$": ["str:py:class", "dict:py:class", "list:py:class", "tuple:py:class"],
        "library/os.html#$": ["os.PathLike:py:class"],
        "library/typing.html#$": ["typing.Any:py:data"],
        "library/collections.abc.html#$": [
            "collections.abc.Callable:py:class",
            "collections.abc.Iterable:py:class",
            "collections.abc.Iterator:py:class",
            "collections.abc.Mapping:py:class",
            "collections.abc.Sequence:py:class",
        ],
    },
    "numpy": {NUMPY: ["numpy.ndarray:py:class", "numpy.linalg.eigh:py:function", "numpy.memmap:py:class"]},
    "sklearn": {
        SKLEARN: [
            "sklearn.pipeline.Pipeline:py:class",
            "sklearn.base.BaseEstimator:py:class",
            "sklearn.base.TransformerMixin:py:class",
            "sklearn.linear_model.LogisticRegression:py:class",
        ]
    },
    "torch": {
        "generated/{name}.html#$": ["torch.nn.Module:py:class"],
        "tensors.html#$": ["torch.Tensor:py:class"],
    },
}
HEADER = "# Sphinx inventory version 2\n# Project: {project}\n# Version: \n# The remainder of this file is compressed using zlib.\n"


def lines_of(pages: dict[str, list[str]]) -> str:
    lines = []
    for page, names in pages.items():
        for entry in names:
            name, role = entry.split(":", 1)
            lines.append(f"{name} {role} 1 {page.format(name=name)} -\n")
    return "".join(sorted(lines))


def main() -> None:
    for project, pages in INVENTORIES.items():
        content = HEADER.format(project=project).encode() + zlib.compress(lines_of(pages).encode(), 9)
        (Path(__file__).parent / f"{project}.inv").write_bytes(content)


if __name__ == "__main__":
    main()

"""Settings of the site. `make docs` builds it offline, with warnings as errors."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(HERE))

import hard_inputs  # noqa: E402
import performance_tables  # noqa: E402
import reference_pages  # noqa: E402

import excise  # noqa: E402

reference_pages.write()
hard_inputs.write()
performance_tables.write()

# Examples run in processes that inherit these; small models and small data gain nothing from threads.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

project = "excise"
author = "The excise authors"
project_copyright = "2026, the excise authors"
version = release = excise.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "inventories", "**/*.py"]
# ref.python: fields of results are named like types, e.g. Evaluation.bytes.
suppress_warnings = ["config.cache", "ref.python"]
default_role = "code"
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = True
napoleon_use_rtype = False
napoleon_use_ivar = True

intersphinx_mapping = {
    "python": ("https://docs.python.org/3/", "inventories/python.inv"),
    "numpy": ("https://numpy.org/doc/stable/", "inventories/numpy.inv"),
    "sklearn": ("https://scikit-learn.org/stable/", "inventories/sklearn.inv"),
    "torch": ("https://docs.pytorch.org/docs/stable/", "inventories/torch.inv"),
}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"excise {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_sourcelink = False
pygments_dark_style = "monokai"

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 5,
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "reset_modules": ("matplotlib", "gallery_style.reset"),
    "doc_module": ("excise",),
    "reference_url": {"excise": None},
    "capture_repr": (),
}

warnings.filterwarnings("ignore", category=DeprecationWarning)

# Docstrings use `|x|` for lengths, which reStructuredText reads as a substitution.
BAR = re.compile(r"(``.*?``|`[^`]*`)|(\|)")


def escape_bars(_app, _what, _name, _obj, _options, lines):
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[i] = BAR.sub(lambda m: m[1] or r"\|", line)


# reproduction.md is made for the repository, and links to tables that are not pages of the site.
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./(experiments/[^)]*\.md)\)")


def name_files_outside(_app, _docname, source):
    source[0] = OUTSIDE.sub(r"\1 (`\2`)", source[0])


def setup(app):
    app.connect("source-read", name_files_outside)
    app.connect("autodoc-process-docstring", escape_bars, priority=600)

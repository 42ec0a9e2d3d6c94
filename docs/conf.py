"""How the documents are built: `sphinx-build -c docs . OUTPUT`, from the root of the repository.

The root is the source folder, so that a relative link from one file to another works where the
repository is read as it is, and on the site.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "extensions"))

from sphinx.application import Sphinx

import planner

project = "planner"
copyright = "the authors of planner"
version = release = planner.__version__
root_doc = "docs/index"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "commands",
]
include_patterns = [
    "docs/**",
    "reports/*.md",
    "reports/reliability/misuse.md",
    "reports/solver/ablation.md",
    "reports/solver/least.md",
    "models/README.md",
    "planner/plan/planfile.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = ["docs/_build", ".*", "planner/*/__pycache__", "build", "dist", "tests"]

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"planner {release}"
html_show_sphinx = False
html_copy_source = False

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_mock_imports = [] if find_spec("torch") else ["torch", "onnxscript"]
# `x` in a docstring is code, as in the Markdown pages
smartquotes = False
default_role = "code"
nitpick_ignore_regex = [
    # others' documents, which are not fetched to build these
    (
        "py:.*",
        r"(pathlib|collections|contextlib|datetime|functools|enum|typing|numpy|np|os|torch|onnx|nn)\..*",
    ),
    # what is no part of the API, though a signature names it
    ("py:.*", r"(MakeSession|planner\.graph\.model\..*|planner\.plan\.statistics\..*)"),
    (
        "py:.*",
        r"(Path|optional|Tensor|Array|(ort\.)?InferenceSession|SessionOptions|(Base)?Exception)",
    ),
]


def _place_others(_app: Sphinx, page: str, content: list[str]) -> None:
    """A page that the contents do not name stands behind the other how-to pages."""
    if page == root_doc:
        named = set(re.findall(r"^[\w./]+$", content[0], re.MULTILINE))
        there = {path.stem for path in Path(__file__).parent.glob("*.md")}
        content[0] = content[0].replace("% others", "\n".join(sorted(there - named - {"index"})))


def _index_at_root(app: Sphinx, error: Exception | None) -> None:
    """Have the root of the site lead to the index: pages lie in it as their sources in the repository."""
    if error is None and app.builder.format == "html":
        to = f"0; url={root_doc}.html"
        page = f'<!doctype html><meta http-equiv="refresh" content="{to}"><title>planner</title>'
        (Path(app.outdir) / "index.html").write_text(page + "\n", encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Sphinx's way in."""
    app.connect("source-read", _place_others)
    app.connect("build-finished", _index_at_root)

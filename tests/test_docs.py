"""The documents: they build without a warning, their links lead somewhere, their examples are right."""

from __future__ import annotations

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import planner
from planner import errors
from planner.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
LOOSE = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "models/README.md")
]
"""Pages that are read in a checkout too, or only there."""

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FRAGMENTS = {
    "exporting": "module: nn.Module, inputs: Given, loss_fn: Loss, targets: Given",
}
"""Pages whose examples are parts of a program: what they take from the rest of it."""

FRAGMENT = """
import torch
from torch import nn

from planner import export_training_graph
from planner.export.trace.step import Loss
from planner.export.arguments import Given


def example({given}) -> None:
{body}
"""


class Links(html.parser.HTMLParser):
    """What a page points to, and what in it can be pointed to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep `href`, `src`, `id` and `name`."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.targets.append(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents, built with every warning an error."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    build = [
        "-m",
        "sphinx",
        "-q",
        "-n",
        "-W",
        "--keep-going",
        "-c",
        "docs",
        "-d",
        str(folder / "kept"),
    ]
    done = subprocess.run(
        [sys.executable, *build, ".", str(folder / "html")],
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "html"


def test_the_root_of_the_site_leads_to_its_index(site: Path):
    (target,) = re.findall(r"url=([^\"]+)", (site / "index.html").read_text(encoding="utf-8"))
    assert "planner" in (site / target).read_text(encoding="utf-8")


def test_every_link_of_the_site_leads_somewhere(site: Path):
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > len(PAGES)
    broken, images = [], 0
    for path, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            images += file.suffix in (".png", ".svg")
            is_there = file.is_file() and (
                not parts.fragment
                or file not in pages
                or unquote(parts.fragment) in pages[file].anchors
            )
            if not is_there:
                broken.append((path.relative_to(site).as_posix(), target))
    assert broken == []
    assert images > 5


def test_every_page_is_on_the_site(site: Path):
    for page in PAGES:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file(), page


def test_the_reference_has_every_name_and_every_command(site: Path):
    reference = site / "docs" / "reference"
    api = Links((reference / "api.html").read_text(encoding="utf-8")).anchors
    missing = [name for name in planner.__all__ if f"planner.{name}" not in api]
    # a plan and the base of all errors are documented where they are defined
    assert [n for n in missing if not any(a.endswith(f".{n}") for a in api)] == []
    commands = Links((reference / "commands.html").read_text(encoding="utf-8")).anchors
    names = [c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands]
    assert len(names) > 10
    assert {f"planner-{name}" for name in names} <= commands


def test_exit_codes_are_those_of_the_errors():
    page = (ROOT / "docs" / "reference" / "exit_codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\| `(\w+)` \|$", page, re.MULTILINE)
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    raised = {c.__name__: c.exit_code for c in classes if issubclass(c, errors.PlannerError)}
    assert {name: int(code) for code, name in rows} == raised


def test_links_and_names_of_files_hold_in_a_checkout():
    broken = []
    for page in (*LOOSE, *PAGES):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            parts = urlsplit(target)
            if not parts.scheme and parts.path and not (page.parent / parts.path).exists():
                broken.append((page.name, target))
        for name in re.findall(r"`((?:docs|reports|models|planner|tests)/[\w./-]+)`", text):
            if not (ROOT / name).exists():
                broken.append((page.name, name))
    assert broken == []


def examples() -> Iterator[tuple[str, str]]:
    """(file name, code) of every Python example; blocks of a page are apart, as a reader copies them."""
    for page in (ROOT / "README.md", *PAGES):
        for number, block in enumerate(PYTHON.findall(page.read_text(encoding="utf-8"))):
            first = block.partition("\n")[0]
            name = first.removeprefix("# ") if first.endswith(".py") else f"example{number}.py"
            if page.stem in FRAGMENTS:
                body = textwrap.indent(block, "    ")
                block = FRAGMENT.format(given=FRAGMENTS[page.stem], body=body)
            yield f"{page.stem}/{name}", block


def test_the_types_of_the_examples_are_right(tmp_path: Path):
    pytest.importorskip("torch")
    found = dict(examples())
    assert len(found) >= 8
    for name, code in found.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code, encoding="utf-8")
    settings = {"include": ["."], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_examples_of_a_script_run(tmp_path: Path):
    """Each with names of its own, on a model under the name that they have for it: planning first.

    Searches end after two seconds: what they find is not what is looked at.
    """
    for suffix in ("onnx", "inputs.json"):
        shutil.copy(ROOT / "models" / "zoo" / f"gpt.{suffix}", tmp_path / f"model.{suffix}")
    pages = ("README/", "onnxruntime/")
    codes = {name: code for name, code in examples() if name.startswith(pages)}
    assert all(any(name.startswith(page) for name in codes) for page in pages)
    first = sorted(codes, key=lambda name: "optimize(" not in codes[name])
    each = "import functools, planner\n"
    for search in ("analyze", "optimize"):
        each += f"planner.{search} = functools.partial(planner.{search}, time_limit_s=2.0)\n"
    each += f"for name, code in {[(name, codes[name]) for name in first]!r}:\n"
    each += "    exec(compile(code, name, 'exec'), {'__name__': '__main__'})\n"
    done = subprocess.run(
        [sys.executable, "-c", each],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "model.planned.onnx").is_file()

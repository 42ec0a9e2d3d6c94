"""What an installation takes: `python -m reports.footprint` makes one afresh and writes `footprint.md`.

    python -m reports.footprint            # about five minutes where packages are fetched
    python -m reports.footprint --extra torch

The table has the packages of `pip install ".[cpu]"` by what lies on disk, compiled `.pyc` files apart,
and who asks for each. Times are of processes of their own, the least of some runs.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.shared import least_s, program

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_suffix(".md")
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.py", "planner")
MB = 1e6
LEAST_MB = 1.0
"""Packages below this size share one row."""
RUNS = 5
START = {
    "python -c pass": ("-c", "pass"),
    "import planner": ("-c", "import planner"),
    "planner --help": ("-m", "planner", "--help"),
    "from planner import optimize": ("-c", "from planner import optimize"),
}
LOADED = ("bokeh", "numpy", "onnx", "onnx_ir", "onnxruntime", "ortools", "pandas", "sympy")

_LOOK = """
import json
from importlib import metadata
found = []
for dist in metadata.distributions():
    rows = [r for r in dist.requires or [] if "extra ==" not in r]
    files = [(str(f), dist.locate_file(f)) for f in dist.files or []]
    sizes = {n: p.stat().st_size for n, p in files if p.is_file() and not p.is_symlink()}
    found.append({
        "name": dist.metadata["Name"], "version": dist.version, "requires": rows,
        "bytes": sum(s for n, s in sizes.items() if not n.endswith(".pyc")),
        "compiled": sum(s for n, s in sizes.items() if n.endswith(".pyc")),
        "files": len(sizes),
    })
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed distribution.

    Attributes:
        mb: megabytes (10^6 bytes) of its files without `.pyc`; compiled_mb: of these.
        needed_by: the distributions that require it, in any environment.
    """

    name: str
    version: str
    mb: float
    compiled_mb: float
    needed_by: tuple[str, ...]


def packages_of(found: list[dict[str, Any]]) -> list[Package]:
    """List the packages, the largest first, without pip and setuptools, which every environment has.

    Args:
        found: name, version, requires, bytes and compiled of each distribution.
    """
    needs = {row["name"]: {_plain(r) for r in row["requires"]} for row in found}
    packages = [
        Package(
            name=row["name"],
            version=row["version"],
            mb=row["bytes"] / MB,
            compiled_mb=row["compiled"] / MB,
            needed_by=tuple(
                sorted(n for n, wants in needs.items() if _plain(row["name"]) in wants)
            ),
        )
        for row in found
        if row["name"] not in ("pip", "setuptools")
    ]
    return sorted(packages, key=lambda p: (-p.mb, p.name))


def _plain(requirement: str) -> str:
    """Return the normalized name in a requirement such as `Jinja2>=3.1 ; python_version > "3"`."""
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), None)
    return requirement[:end].replace("_", "-").replace(".", "-").lower()


def installed(folder: Path, extra: str) -> Path:
    """Install this package from a copy of its sources in an environment; yield Python's path in it."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([python, *install, f"{source}[{extra}]"], check=True, cwd=folder)
    return python


def loaded(python: Path, code: str, folder: Path) -> list[str]:
    """Return the heavy packages that some code loads."""
    code += f"\nimport sys; print(*[m for m in {LOADED!r} if m in sys.modules])"
    done = subprocess.run(
        [python, "-c", code], check=True, cwd=folder, capture_output=True, text=True
    )
    return done.stdout.split()


def page(packages: list[Package], extra: str, starts: dict[str, float], heavy: list[str]) -> str:
    """Return the report.

    Args:
        starts: seconds, by what was run.
        heavy: packages that `import planner` loads.
    """
    large = [p for p in packages if p.mb >= LEAST_MB]
    small = [p for p in packages if p.mb < LEAST_MB]
    total, compiled = sum(p.mb for p in packages), sum(p.compiled_mb for p in packages)
    lines = [
        "# What an installation takes",
        "",
        f'Written by `python -m reports.footprint`: `pip install ".[{extra}]"` in a fresh environment,',
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}. MB are 10^6",
        "bytes of files; *compiled* are the `.pyc` files that pip makes of them, which",
        "`pip install --no-compile` leaves out (Python then makes those that it needs, when first",
        "imported). What has nobody under *required by* was asked for by name, or by the extra.",
        "",
        f"{len(packages)} packages, {total:,.0f} MB, and {compiled:,.0f} MB compiled.",
        "",
        "| package | version | MB | compiled MB | required by |",
        "|---|---|---:|---:|---|",
        *[
            f"| {p.name} | {p.version} | {p.mb:.1f} | {p.compiled_mb:.1f} | {', '.join(p.needed_by)} |"
            for p in large
        ],
        f"| {len(small)} others | | {sum(p.mb for p in small):.1f} "
        f"| {sum(p.compiled_mb for p in small):.1f} | |",
        "",
        f"| started | s (least of {RUNS}) |",
        "|---|---:|",
        *[f"| `{name}` | {value:.2f} |" for name, value in starts.items()],
        "",
        f"`import planner` loads {', '.join(heavy) if heavy else 'none'} of {', '.join(LOADED)}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Install, measure, and write the page."""
    parser = program("reports.footprint", __doc__)
    parser.add_argument("--extra", default="cpu", help="what is installed beside the package (cpu)")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="planner-footprint-") as name:
        folder = Path(name)
        python = installed(folder, arguments.extra)
        done = subprocess.run(
            [python, "-c", _LOOK], check=True, cwd=folder, capture_output=True, text=True
        )
        # the first run compiles
        starts = {what: least_s([python, *a], RUNS + 1, folder) for what, a in START.items()}
        heavy = loaded(python, "import planner", folder)
        text = page(packages_of(json.loads(done.stdout)), arguments.extra, starts, heavy)
    arguments.output.write_text(text, encoding="utf-8")
    print(arguments.output)


if __name__ == "__main__":
    main()

"""Compile the native library. setup.py runs this module too: it imports the standard library alone.

The file's name has a digest of the sources: a library of other sources is never taken for this one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-shared", "-s", "-fvisibility=hidden", "-pthread"),
    "-ffp-contract=off",  # the search finds the same plans on every machine, and fusion the same bits
    *("-fno-math-errno", "-fno-trapping-math"),  # loops become vectors; no value changes
)
ZIG_REQUIREMENT = (
    "ziglang>=0.14; sys_platform in 'linux darwin' and platform_machine in 'x86_64 aarch64 arm64'"
)
"""The package that a build requires where the system has no C++ compiler."""
GLIBC = "2.28"
"""The oldest glibc for a library built by ziglang: that of onnxruntime's own wheels."""


class BuildError(Exception):
    """No compiler was found, or each one failed; the message has the compilers' own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A C++ compiler.

    Attributes:
        command: the command line, with the arguments that choose its target.
        wheel_platform: the platform tag of a wheel with its library; "" for this machine's tag.
    """

    command: tuple[str, ...]
    wheel_platform: str = ""


def library_name(sources: Path = SOURCES) -> str:
    """Return the library's file name, which differs where any source differs."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(path for kind in ("cpp", "h", "inc") for path in sources.rglob(f"*.{kind}")):
        name = path.relative_to(sources).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"libplanner_native.{digest.hexdigest()[:12]}.so"


def system_compiler() -> Compiler | None:
    """Return the compiler that `CXX` names, or the first of c++, g++ and clang++ on the path."""
    if named := os.environ.get("CXX"):
        return None if named == "zig" else Compiler(command=tuple(shlex.split(named)))
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return Compiler(command=(found,)) if found else None


def zig_compiler() -> Compiler | None:
    """Return the compiler of the package `ziglang`; None where it is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    command = (sys.executable, "-m", "ziglang", "c++")
    machine = platform.machine().lower()
    if platform.libc_ver()[0] != "glibc":
        return Compiler(command=command)
    return Compiler(
        command=(*command, "-target", f"{machine}-linux-gnu.{GLIBC}"),
        wheel_platform=f"manylinux_{GLIBC.replace('.', '_')}_{machine}",
    )


def build(folder: Path, sources: Path = SOURCES) -> Compiler:
    """Compile the library into a folder, replacing an older one; return the compiler that did it.

    Raises:
        BuildError: no compiler was found, or all failed.
    """
    compilers = [found for found in (system_compiler(), zig_compiler()) if found]
    said = [
        f"no C++ compiler was found: neither c++, g++ nor clang++, nor {sys.executable} -m ziglang"
    ]
    for compiler in compilers:
        folder.mkdir(parents=True, exist_ok=True)
        name = library_name(sources)
        made = folder / f".{os.getpid()}.{name}"
        failed = compile_unit(compiler.command, FLAGS, made, sources)
        if not failed:
            for old in folder.glob("libplanner_native.*.so"):
                old.unlink(missing_ok=True)
            made.replace(folder / name)
            return compiler
        made.unlink(missing_ok=True)
        said = [*(said if len(said) > 1 else ()), f"{shlex.join(compiler.command)}: {failed}"]
    raise BuildError("; ".join(said))


def compile_unit(
    command: tuple[str, ...], flags: tuple[str, ...], made: Path, sources: Path = SOURCES
) -> str:
    """Compile all sources as one unit; return why that failed, or "" where it did not."""
    paths = sorted(path.relative_to(sources).as_posix() for path in sources.rglob("*.cpp"))
    unit = "".join(f'#include "{path}"\n' for path in paths)
    try:
        done = subprocess.run(
            [*command, *flags, f"-I{sources}", "-x", "c++", "-", "-o", str(made), "-ldl"],
            input=unit,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr[:2000] or f"status {done.returncode}"

"""Places where nothing may be written, or should not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.reliability.case import OK, USAGE, Case
from tests.reliability.kit import take

_OPTIMIZE = ("optimize", "model.onnx", "--budget", "70%", "--time-limit", "2", "-q", "--no-verify")
_APPLY = ("apply", "model.onnx", "plan.json", "-q")
_SOLVE = ("solve", "problem.json", "--budget", "80%", "--time-limit", "2", "-q")
_PROBLEM = ("problem", "model.onnx", "-q")
_ANALYZE = ("analyze", "model.onnx", "--time-limit", "2", "-q")


def cases() -> list[Case]:
    """Each is refused before any work is done."""
    found: list[Case] = []
    for name, command in {
        "optimize": _OPTIMIZE,
        "apply": _APPLY,
        "solve": _SOLVE,
        "problem": _PROBLEM,
        "analyze": _ANALYZE,
    }.items():
        for wrong, options, build in _refused():
            if "is a folder" in wrong and name in ("optimize", "apply"):
                continue  # there it is where the files go
            found.append(
                Case(
                    room="output",
                    wrong=f"{name}: {wrong}",
                    arguments=(*command, *options),
                    build=build,
                    exits=(USAGE,),
                    words=("output",),
                )
            )
    for wrong, options in {
        "the plan is the model": ("--plan", "model.onnx"),
        "the report is the plan": ("--plan", "p.json", "--report", "p.json"),
        "the trace is the report": ("--report", "r.html", "--trace", "./r.html"),
        "the output is the model, by force": ("-f", "-o", "model.onnx"),
        "the output is the model by another way": ("-f", "-o", "folder/../model.onnx"),
        "the output is a link to the model": ("-f", "-o", "link.onnx"),
        "the trace is a device": ("-f", "--trace", "null"),
        "the report's folder is missing": ("--report", "gone/r.html"),
        "the plan is a folder": ("--plan", "folder"),
    }.items():
        found.append(
            Case(
                room="output",
                wrong=wrong,
                arguments=(*_OPTIMIZE, *options),
                build=_files,
                exits=(USAGE,),
                words=("output",),
            )
        )
    found += [
        Case(
            room="output",
            wrong=f"a name of {length} bytes, which is legal",
            arguments=(*_APPLY, "-o", "n" * (length - 5) + ".onnx"),
            build=_files,
            exits=(OK,),
        )
        for length in (200, 245, 255)
    ]
    return found


def _refused() -> list[tuple[str, tuple[str, ...], Callable[[Path], object]]]:
    return [
        ("the output exists", ("-o", "taken"), _files),
        ("the output is a folder", ("-o", "folder/folder"), _files),
        ("the folder is missing", ("-o", "gone/out"), _files),
        ("the folder is a file", ("-o", "taken/out"), _files),
        ("the output is a link to itself", ("-o", "loop"), _files),
        ("the output is a link to itself, by force", ("-f", "-o", "loop"), _files),
        ("the output is a device, by force", ("-f", "-o", "null"), _files),
        ("the output's name has 300 bytes", ("-o", "n" * 300), _files),
        ("the output's name has 256 bytes", ("-o", "é" * 128), _files),
        ("the output's path has 9,000 characters", ("-o", "d/" * 4500 + "out"), _files),
    ]


def _files(folder: Path) -> None:
    take("model.onnx", "plan.json", "problem.json", into=folder)
    (folder / "taken").write_text("precious")
    (folder / "folder" / "folder").mkdir(parents=True)
    (folder / "folder" / "folder" / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "null").symlink_to("/dev/null")
    (folder / "link.onnx").symlink_to("model.onnx")

"""Chunks of rows: options that are none, plans whose regions the model has not, models without any."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.reliability.case import INFEASIBLE, OK, USAGE, Case
from tests.reliability.cases.plans import change_plan
from tests.reliability.graphs import diamond, info, proto, save

_AUTO = ("optimize", "model.onnx", "--split", "auto", "--time-limit", "5", "-q", "--dry-run")
_APPLY = ("apply", "model.onnx", "plan.json", "-o", "out.onnx", "-q")
_REGION: dict[str, Any] = {
    "tensor": "a0",
    "axis": 0,
    "chunks": 2,
    "large_bytes": 1,
    "nodes": ["a0"],
}


def cases() -> list[Case]:
    """Each is refused by name, or is legal."""
    return [*_of_options(), *_of_plans(), *_of_models()]


def _of_options() -> Iterator[Case]:
    for value in ("", "rows", "4", "none,auto"):
        yield Case(
            room="split",
            wrong=f"--split {value!r}",
            arguments=("optimize", "model.onnx", "--budget", "60%", f"--split={value}"),
            build=_model,
            exits=(USAGE,),
        )
    yield Case(
        room="split",
        wrong="--split auto without a budget",
        arguments=(*_AUTO, "--max-slowdown", "5%"),
        build=_model,
        exits=(USAGE,),
        words=("--budget",),
    )


def _of_plans() -> Iterator[Case]:
    for wrong, split in (
        ("split is a text", "auto"),
        ("split is a list of regions, not of lists", [_REGION]),
        ("a region is a number", [[1]]),
        ("a region has no axis", [[{k: v for k, v in _REGION.items() if k != "axis"}]]),
        ("a region's axis is -1", [[{**_REGION, "axis": -1}]]),
        ("a region's axis is 10^30", [[{**_REGION, "axis": 10**30}]]),
        ("a region has one chunk", [[{**_REGION, "chunks": 1}]]),
        ("a region has 10^9 chunks", [[{**_REGION, "chunks": 10**9}]]),
        ("a region's chunks are true", [[{**_REGION, "chunks": True}]]),
        ("a region is around no tensor", [[{**_REGION, "tensor": "ghost"}]]),
        ("a region's nodes are others", [[{**_REGION, "nodes": ["ghost"]}]]),
        ("a region's nodes are none", [[{**_REGION, "nodes": []}]]),
        ("a region is there twice", [[_REGION, _REGION]]),
    ):
        yield Case(
            room="split",
            wrong=f"the plan's {wrong}" if wrong.startswith("split") else wrong,
            arguments=_APPLY,
            build=partial(change_plan, "plan.json", _set(split)),
        )


def _of_models() -> Iterator[Case]:
    for wrong, budget, build, exits in (
        ("a budget of 1 B, in chunks", "1B", _model, (INFEASIBLE,)),
        ("rows of one, in chunks", "60%", _narrow, (OK, INFEASIBLE)),
        ("a symbolic dim, in chunks", "60%", _symbolic, (OK, INFEASIBLE)),
    ):
        more = ("--dim", "batch=64") if build is _symbolic else ()
        yield Case(
            room="split",
            wrong=f"{wrong}, which is legal",
            arguments=(*_AUTO, "--budget", budget, *more),
            build=build,
            exits=exits,
        )


def _set(split: object) -> Any:
    return lambda plan: plan.update(split=split)


def _model(folder: Path) -> None:
    save(proto(diamond()), folder / "model.onnx")


def _narrow(folder: Path) -> None:
    shape = [1, 1, 4096]
    save(
        proto(diamond(), inputs=[info("x", *shape)], outputs=[info("y", *shape)]),
        folder / "model.onnx",
    )


def _symbolic(folder: Path) -> None:
    shape: list[int | str] = ["batch", 64]
    save(
        proto(diamond(), inputs=[info("x", *shape)], outputs=[info("y", *shape)]),
        folder / "model.onnx",
    )

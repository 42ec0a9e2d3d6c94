"""Plan files of another model, another version, edited by hand, or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.reliability.case import MODEL, OK, USAGE, VERIFICATION, Case
from tests.reliability.graphs import diamond, proto, save
from tests.reliability.kit import document, kit, take

Change = Callable[[Any], object]

DEEP = "[" * 100_000
"""JSON deeper than any reader's stack."""

_APPLY = ("apply", "model.onnx", "plan.json", "-o", "out.onnx", "-q")
_VERIFY = ("verify", "model.onnx", "planned.onnx", "--plan", "plan.json", "-q")
_EXPLAIN = ("explain", "model.onnx", "plan.json", "--tensor", "a0", "--time-limit", "2", "-q")
_DIFF = ("diff", "good.json", "plan.json", "-q")
_COMMANDS = (_APPLY, _VERIFY, _EXPLAIN, _DIFF)


def cases() -> list[Case]:
    """Each damage once, with the four commands that read plans in turn; the worst with all."""
    found: list[Case] = []
    for i, (wrong, build) in enumerate(_damaged()):
        for arguments in _COMMANDS if wrong in _WITH_ALL else (_COMMANDS[i % 4],):
            found.append(_case(wrong, build, arguments))
    for i, (wrong, change, words) in enumerate(_edited()):
        found.append(
            _case(wrong, partial(change_plan, "plan.json", change), _COMMANDS[i % 4], words)
        )
    for wrong, change, words in _unfit():
        case = _case(wrong, partial(change_plan, "plan.json", change), _APPLY, words)
        found.append(replace(case, exits=(MODEL, USAGE)))
    for wrong, change in _swapped():
        found.append(_case(wrong, partial(change_plan, "swaps.json", change), _APPLY))
    return found + _mixed()


def _case(
    wrong: str,
    build: Callable[[Path], object],
    arguments: tuple[str, ...],
    words: tuple[str, ...] = (),
) -> Case:
    return Case(room="plan", wrong=wrong, arguments=arguments, build=build, words=words)


def _files(folder: Path) -> None:
    take("model.onnx", "planned.onnx", "plan.json", into=folder)
    (folder / "plan.json").rename(folder / "good.json")


def _write(data: bytes, folder: Path) -> None:
    _files(folder)
    (folder / "plan.json").write_bytes(data)


def _cut(share: float, folder: Path) -> None:
    data = (kit() / "plan.json").read_bytes()
    _write(data[: int(len(data) * share)], folder)


def change_plan(source: str, change: Change, folder: Path) -> None:
    """A model, and a plan of it that was changed."""
    plan = document(source)
    change(plan)
    _write(json.dumps(plan).encode(), folder)


_WITH_ALL = ("the plan is empty", "the plan is nested 100,000 deep", "the plan is not UTF-8")


def _damaged() -> Iterator[tuple[str, Callable[[Path], object]]]:
    for what, data in {
        "empty": b"",
        "nested 100,000 deep": DEEP.encode(),
        "not UTF-8": b'{"version": 1, "model_name": "\xff\xfe"}',
        "text": b"no JSON",
        "null": b"null",
        "a number": b"3",
        "a list": b"[1, 2]",
        "a text": b'"plan"',
        "an empty object": b"{}",
        "a version and no more": b'{"version": 1}',
        "of a version with 5,000 digits": b'{"version": ' + b"9" * 5000 + b"}",
        "nested deep in one field": b'{"version": 1, "schedule": ' + DEEP.encode(),
        "in UTF-16": '{"version": 1}'.encode("utf-16"),
        "zeros": bytes(1000),
    }.items():
        yield f"the plan is {what}", partial(_write, data)
    for share in (0.02, 0.5, 0.999):
        yield f"the plan is cut after {share:.1%}", partial(_cut, share)
    yield "the plan is the model", lambda f: _write((kit() / "model.onnx").read_bytes(), f)
    yield "the plan is a problem file", lambda f: _write((kit() / "problem.json").read_bytes(), f)


def _set(key: str, value: Any) -> Change:
    return lambda plan: plan.update({key: value})


def _edited() -> Iterator[tuple[str, Change, tuple[str, ...]]]:
    def set_in(key: str, field: str, value: Any) -> Change:
        return lambda plan: plan[key].update({field: value})

    for wrong, key, value in (
        ("version is 2", "version", 2),
        ("version is 0", "version", 0),
        ("version is true", "version", True),
        ("version is a text", "version", "1"),
        ("schedule is a text", "schedule", "everything"),
        ("schedule is a number", "schedule", 3),
        ("schedule is null", "schedule", None),
        ("schedule is an object", "schedule", {}),
        ("an action is a number", "schedule", [1]),
        ("an action without a target", "schedule", [{"kind": "run"}]),
        ("dims is a list", "dims", [1]),
        ("dims holds a text", "dims", {"batch": "8"}),
        ("dims holds 0", "dims", {"batch": 0}),
        ("dims holds 2^80", "dims", {"batch": 1 << 80}),
        ("budget_bytes is a text", "budget_bytes", "12"),
        ("budget_bytes is 1.5", "budget_bytes", 1.5),
        ("budget_bytes is -1", "budget_bytes", -1),
        ("budget_bytes is 10^300", "budget_bytes", 10**300),
        ("budget_bytes is true", "budget_bytes", True),
        ("seed is -1", "seed", -1),
        ("seed is 2^70", "seed", 1 << 70),
        ("swap_mode is unknown", "swap_mode", "sometimes"),
        ("device is unknown", "device", "tpu"),
        ("device is a list", "device", ["cpu"]),
        ("copies is unknown", "copies", "later"),
        ("order_target is unknown", "order_target", "alphabetical"),
        ("unchanged is a text", "unchanged", "no"),
        ("solve_s is NaN", "solve_s", float("nan")),
        ("bound_us is infinite", "bound_us", float("inf")),
        ("max_slowdown is -1", "max_slowdown", -1.0),
        ("binding is a text", "binding", "all"),
        ("binding has a triple", "binding", [["a", 1, 2]]),
        ("decisions is a number", "decisions", 7),
        ("peak is a number", "peak", 5),
        ("assumptions is a text", "assumptions", "none"),
        ("hardware is a number", "hardware", 1),
        ("resident is a text", "resident", "everything"),
        ("resident holds a number", "resident", [1]),
        ("feeds is unknown", "feeds", "disk"),
        ("recompute is a text", "recompute", "no"),
        ("host_budget_bytes is -1", "host_budget_bytes", -1),
        ("model_sha256 is null", "model_sha256", None),
    ):
        yield f"the plan's {wrong}", _set(key, value), ()
    for wrong, field, value in (
        ("peak_bytes is NaN", "peak_bytes", float("nan")),
        ("peak_bytes is -1", "peak_bytes", -1),
        ("time_us is infinite", "time_us", float("inf")),
        ("time_us is a text", "time_us", "1"),
        ("swap_us is -1", "swap_us", -1.0),
    ):
        yield f"the plan's planned {wrong}", set_in("planned", field, value), ()
    yield "the plan has no baseline", lambda plan: plan.pop("baseline"), ("baseline",)
    yield "the plan has no dims", lambda plan: plan.pop("dims"), ("dims",)


def _unfit() -> Iterator[tuple[str, Change, tuple[str, ...]]]:
    """The plan is well-formed, and cannot be carried out."""
    yield (
        "a node that the model has not",
        lambda p: p["schedule"].insert(3, {"kind": "run", "target": "ghost", "copy": 0}),
        ("ghost",),
    )
    yield "a tensor on the host that is none", _set("resident", ["ghost"]), ("ghost",)
    yield "a pattern that matches nothing", _set("exclude", ["ghost"]), ("ghost",)
    yield "an action of no known kind", lambda p: p["schedule"][0].update(kind="fly"), ("fly",)
    yield "the first action is missing", lambda p: p["schedule"].pop(0), ()
    yield "the last action is missing", lambda p: p["schedule"].pop(), ()
    yield "the schedule is empty", lambda p: p["schedule"].clear(), ()
    yield "the schedule is backwards", lambda p: p["schedule"].reverse(), ()
    yield "two actions have changed places", lambda p: _exchange(p["schedule"], 0, 1), ()
    yield (
        "a copy of a tensor that is not there",
        lambda p: p["schedule"].insert(3, {"kind": "swap-out", "target": "ghost", "copy": 0}),
        ("ghost",),
    )
    yield (
        "a tensor comes back that never left",
        lambda p: p["schedule"].insert(3, {"kind": "swap-in", "target": "a1", "copy": 0}),
        (),
    )
    yield "a copy is counted as -1", lambda p: p["schedule"][0].update(copy=-1), ("-1",)
    yield "the plan is of another model", _set("model_sha256", "0" * 64), ("another model",)
    yield "the hardware file is missing", _set("hardware", "gone.toml"), ("gone.toml",)
    yield "the hardware is unknown", _set("hardware", "abacus"), ("abacus",)
    yield "a dim that the model has not", _set("dims", {"batch": 4}), ("batch",)


def _exchange(schedule: list[Any], a: int, b: int) -> None:
    schedule[a], schedule[b] = schedule[b], schedule[a]


def _swapped() -> Iterator[tuple[str, Change]]:
    """Plans with copies to the host."""

    def without(kind: str, which: int = 0) -> Change:
        def change(plan: Any) -> None:
            at = [i for i, a in enumerate(plan["schedule"]) if a["kind"] == kind][which]
            plan["schedule"].pop(at)

        return change

    def first_to(kind: str, to: int) -> Change:
        def change(plan: Any) -> None:
            at = next(i for i, a in enumerate(plan["schedule"]) if a["kind"] == kind)
            plan["schedule"].insert(to, plan["schedule"].pop(at))

        return change

    yield "a swap-out is missing", without("swap-out")
    yield "a swap-in is missing", without("swap-in")
    yield "the last swap-in is missing", without("swap-in", -1)
    yield "a swap-in comes first", first_to("swap-in", 0)
    yield "a swap-out comes first", first_to("swap-out", 0)


def _mixed() -> list[Case]:
    """Files of which each is fine, and that do not belong together."""
    return [
        Case(
            room="plan",
            wrong="the plan of another model",
            arguments=("apply", "model.onnx", "other.json", "-o", "out.onnx"),
            build=partial(_taken, ("model.onnx", "other.json")),
            words=("another model",),
        ),
        Case(
            room="plan",
            wrong="the plan of another model, to verify by",
            arguments=("verify", "model.onnx", "planned.onnx", "--plan", "other.json"),
            build=partial(_taken, ("model.onnx", "planned.onnx", "other.json")),
            words=("another model",),
        ),
        Case(
            room="plan",
            wrong="plans of two models",
            arguments=("diff", "plan.json", "other.json"),
            build=partial(_taken, ("plan.json", "other.json")),
            exits=(USAGE,),
            words=("--across-models",),
        ),
        Case(
            room="plan",
            wrong="a plan for the model",
            arguments=("analyze", "plan.json"),
            build=partial(_taken, ("plan.json",)),
        ),
        Case(
            room="plan",
            wrong="model and plan the other way around",
            arguments=("apply", "plan.json", "model.onnx", "-o", "out.onnx"),
            build=partial(_taken, ("model.onnx", "plan.json")),
        ),
        Case(
            room="plan",
            wrong="the rewritten model computes something else",
            arguments=("verify", "model.onnx", "wrong.onnx", "-q"),
            build=_computes_otherwise,
            exits=(VERIFICATION,),
            words=("'y'",),
            alone=True,
        ),
        Case(
            room="plan",
            wrong="no tensor of that name",
            arguments=("explain", "model.onnx", "plan.json", "--tensor", "ghost"),
            build=partial(_taken, ("model.onnx", "plan.json")),
            exits=(USAGE,),
            words=("ghost",),
        ),
        Case(
            room="plan",
            wrong="a key of a later release, which is legal",
            arguments=_APPLY,
            build=partial(change_plan, "plan.json", _set("of_a_later_release", [1])),
            exits=(OK,),
        ),
        Case(
            room="plan",
            wrong="nothing: the plan as it is",
            arguments=_APPLY,
            build=partial(change_plan, "plan.json", lambda plan: None),
            exits=(OK,),
        ),
        Case(
            room="plan",
            wrong="nothing: the plan with copies as it is",
            arguments=_APPLY,
            build=partial(change_plan, "swaps.json", lambda plan: None),
            exits=(OK,),
        ),
    ]


def _taken(names: tuple[str, ...], folder: Path) -> None:
    take(*names, into=folder)


def _computes_otherwise(folder: Path) -> None:
    take("model.onnx", into=folder)
    nodes = diamond(9)
    nodes[0].op_type = "Sin"
    save(proto(nodes), folder / "wrong.onnx")

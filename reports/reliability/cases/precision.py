"""Precision: ways to store tensors that are none, and models in which nothing can be stored so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reports.reliability.case import OK, USAGE, Case
from reports.reliability.graphs import diamond, info, proto, save
from reports.reliability.kit import take

_ANALYZE = ("analyze", "model.onnx", "--time-limit", "2", "-q")


def cases() -> list[Case]:
    """Each is refused by name, or is legal."""
    return [*_estimates()]


def _estimates() -> Iterator[Case]:
    for text in (
        "int8",
        "",
        "bf16,fp16",
        "sparse",
        "sparse=0",
        "sparse=2",
        "sparse=1e-3",
        "sparse=x",
    ):
        yield Case(
            room="precision",
            wrong=f"--as {text!r}",
            arguments=(*_ANALYZE, "--as", text),
            build=_model,
            exits=(USAGE,),
            words=("--as",),
        )
    yield Case(
        room="precision",
        wrong="--as sparse=0.3 of a model with no parameter of two dims",
        arguments=(*_ANALYZE, "--as", "sparse=0.3"),
        build=_of_one_dim,
        exits=(USAGE,),
        words=("changes nothing",),
    )
    yield Case(
        room="precision",
        wrong="--as fp16 twice, which is legal",
        arguments=(*_ANALYZE, "--as", "fp16", "--as", "fp16"),
        build=_model,
        exits=(OK,),
    )


def _model(folder: Path) -> None:
    take("model.onnx", into=folder)


def _of_one_dim(folder: Path) -> None:
    inputs, outputs = [info("x", 64)], [info("y", 64)]
    save(proto(diamond(), inputs=inputs, outputs=outputs), folder / "model.onnx")

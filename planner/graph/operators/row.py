"""A row of the operator table: all that planner knows of one operator.

A row names rules; the package that applies a rule defines it, and a test compares the names. A
missing entry means "unknown" and gets the conservative treatment: no effect counts as harmless,
each output has its own buffer, only bytes count toward the time, and planner neither cuts the
operator into rows nor adds its results up over parts of a batch. For kernels that the table lacks,
workspace and packed weights count as none.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal


class Effect(enum.StrEnum):
    """Side effects and requirements of an operation that its inputs and outputs do not show."""

    PURE = "pure"
    RANDOM_SEEDED = "random, with a seed of its own"
    RANDOM_UNSEEDED = "random, without a seed"
    RANDOM_IN_TRAINING = "random in training mode"
    RUNNING_STATISTICS = "running statistics"
    STATE_UPDATE = "state update"
    CONTROL_FLOW = "control flow"
    OUTSIDE = "outside the graph"
    CONTAINER = "sequence, optional or strings"
    COMPILED = "compiled graph"
    ANY_ORDER = "adds in any order"
    LEFT_ON_HOST = "leaves its result on the host"
    UNKNOWN_OPERATOR = "unknown operator"
    UNKNOWN_DOMAIN = "unknown domain"

    @property
    def is_random(self) -> bool:
        """Whether the operation draws random numbers."""
        return self in _RANDOM

    @property
    def is_known(self) -> bool:
        """Whether the table has the operator."""
        return self not in (Effect.UNKNOWN_OPERATOR, Effect.UNKNOWN_DOMAIN)


_RANDOM = (Effect.RANDOM_SEEDED, Effect.RANDOM_UNSEEDED, Effect.RANDOM_IN_TRAINING)

CostRule = Literal[
    "nothing",
    "moves result",
    "moves all",
    "copy out",
    "copy in",
    "each read",
    "each made",
    "operands",
    "window",
    "window of gradient",
    "product",
    "convolution",
    "transposed convolution",
    "convolution gradient",
    "kernel gradient",
    "einsum",
    "attention",
]
"""Names of the rules that count arithmetic and bytes (`planner.cost.work`)."""

RowsRule = Literal[
    "elementwise",
    "by vectors",
    "softmax",
    "normalization",
    "skip normalization",
    "reduce",
    "arg",
    "product",
    "gemm",
    "transpose",
    "view",
    "gather",
    "gather elements",
    "scatter elements",
    "one hot",
    "slice",
    "pad",
    "concat",
    "split",
    "expand",
    "tile",
    "triangle",
    "running sum",
]
"""Names of the rules that run an operator in chunks of rows (`planner.lower.chunks.row_rules`)."""

ShareRule = Literal[
    "keeps",
    "linear",
    "view",
    "sum",
    "product",
    "each",
    "along axis",
    "one hot",
    "compares",
    "reduces to a total",
    "reduces",
    "where",
    "expands",
    "cuts",
    "gathers",
    "scatters",
]
"""Names of the rules that derive a sample's share in a total (`planner.micro.share_rules`)."""

WorkspaceRule = Literal[
    "where",
    "softmax",
    "softmax gradient",
    "convolution",
    "transposed convolution",
    "convolution gradient",
    "batch normalization",
    "one intermediate",
]
"""Names of the rules for temporary bytes of the CPU kernel (`planner.runtime.memory.workspace`)."""

Pairs = tuple[tuple[int, int], ...]
"""Pairs of (input index, output index)."""

FIRST: Pairs = ((0, 0),)


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost rule, and flops per element for the rules that count elements."""

    rule: CostRule
    flops: int = 0


def made(flops: int) -> Cost:
    """Count flops for each element of the largest output."""
    return Cost("each made", flops)


def read(flops: int) -> Cost:
    """Count flops for each element of the largest input."""
    return Cost("each read", flops)


NOTHING, MOVES, MOVES_ALL = Cost("nothing"), Cost("moves result"), Cost("moves all")
OPERANDS, WINDOW = Cost("operands"), Cost("window")
PRODUCT, CONVOLUTION, ATTENTION = Cost("product"), Cost("convolution"), Cost("attention")

T = 10
"""Flops of an exponential, root, logarithm, hyperbolic or error function."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator, on ONNX Runtime's CPU provider.

    Attributes:
        effect: of a run; for an operator that is random or writes state only in training mode, its
            effect there.
        cost: None if its arithmetic is unknown.
        rows, share, workspace: names of rules.
        is_view: its first output shares its first input's buffer: no work, no memory.
        in_place: (input, output) pairs: the output may be written over the input if that has no
            later reader.
        not_in_place: element types for which the kernel does not work in place.
        aliases: (input, output) pairs that share one buffer, written over by the kernel.
        writes: inputs that the kernel writes over and its outputs depend on.
        state: inputs that the kernel writes over although its other outputs do not depend on them.
        axis: the default of the axis along which the operator relates elements to each other; None
            if it has no such axis.
        over_batch: it computes statistics over the batch, whatever its attributes say.
        has_shape_input: its second and later inputs, if integers, only give a shape.
        packs: the kernel may pack constant weights (`PrePack` in providers/cpu, contrib_ops/cpu).
    """

    effect: Effect
    cost: Cost | None = None
    rows: RowsRule | None = None
    share: ShareRule | None = None
    workspace: WorkspaceRule | None = None
    is_view: bool = False
    in_place: Pairs = ()
    not_in_place: frozenset[str] = frozenset()
    aliases: Pairs = ()
    writes: tuple[int, ...] = ()
    state: tuple[int, ...] = ()
    axis: int | None = None
    over_batch: bool = False
    has_shape_input: bool = False
    packs: bool = False


def alike(effect: Effect, names: str) -> dict[str, Operator]:
    """Make rows for operators of which only the effect is known."""
    return dict.fromkeys(names.split(), Operator(effect))

"""A row of the operator table: all that planner knows of one operator.

A row names rules; the room that applies a rule has it, and a test compares the names. What a row does not
have is unknown, and has the conservative treatment: no effect is taken for harmless, each output has a
buffer of its own, arithmetic is told as unknown and bytes alone count, nothing is cut into rows or taken
to add up over parts of a batch. Two things are told of no kernel that is not in the table, and count as
none: workspace, and packed weights.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal


class Effect(enum.StrEnum):
    """What a run of an operation does, or needs, that its inputs and outputs do not show."""

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
        """Whether the table says anything of the operator."""
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
    "einsum",
    "attention",
]
"""How arithmetic and bytes are counted (`planner.cost.work`)."""

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
"""How the operator is run in chunks of rows (`planner.lower.chunks.row_rules`)."""

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
"""What follows of a sample's share in a total (`planner.micro.share_rules`)."""

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
"""Temporary bytes of the CPU kernel (`planner.runtime.memory.workspace`)."""

Pairs = tuple[tuple[int, int], ...]
"""(input index, output index) each."""

FIRST: Pairs = ((0, 0),)


@dataclass(frozen=True, slots=True)
class Cost:
    """A rule, and the flops for each element where it counts elements."""

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
        effect: of a run; for those that are random or write state in training mode alone, the kind there.
        cost: None where its arithmetic is unknown.
        rows, share, workspace: names of rules.
        is_view: its first output is its first input's buffer: no work, no memory.
        in_place: outputs that may be written over an input without a later reader.
        not_in_place: element types for which the kernel is not in place.
        aliases: outputs that are an input's buffer, written over.
        writes: inputs whose buffers the kernel leaves changed, and which its outputs depend on.
        state: inputs that it writes over though its other outputs do not depend on them.
        axis: by default, along which elements are put in relation to each other; None for those that
            have no such axis.
        over_batch: it takes statistics over the batch, whatever its attributes say.
        has_shape_input: the second input, and those behind it, only give a shape where they are integers.
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
    """Make rows of operators of which the effect alone is known."""
    return dict.fromkeys(names.split(), Operator(effect))

"""Reasons that rule out a recompute, a copy to the host, or a lever.

Each reason has a code, for files and JSON, and a sentence for people. Code compares members.
"""

from __future__ import annotations

import enum

from planner.graph.effects import Effect


class _Reason(enum.StrEnum):
    """A reason: its value is the code; `sentence` is for people."""

    sentence: str

    def __new__(cls, code: str, sentence: str) -> _Reason:
        member = str.__new__(cls, code)
        member._value_ = code
        member.sentence = sentence
        return member


class WhyOnce(_Reason):
    """Why an operation may not run a second time; its sentence has the fields `{op}` and `{domain}`."""

    RANDOM_SEEDED = (
        "random-seeded",
        "{op}, with a fixed seed too, draws random numbers: each run draws the next ones",
    )
    RANDOM_UNSEEDED = "random-unseeded", "{op} has no seed and draws random numbers"
    RANDOM_IN_TRAINING = "random-in-training", "training-mode {op} draws random numbers"
    RUNNING_STATISTICS = (
        "running-statistics",
        "training-mode {op} updates its running statistics in place",
    )
    STATE_UPDATE = (
        "state-update",
        "{op} updates state: a second run would apply the update again",
    )
    CONTROL_FLOW = "control-flow", "{op} runs a subgraph, whose effects we don't know"
    OUTSIDE = "outside", "{op} acts outside the graph"
    CONTAINER = "container", "{op} works on sequences, optionals or strings, which are made once"
    COMPILED = "compiled", "{op} runs a compiled graph, whose effects we don't know"
    ANY_ORDER = "any-order", "{op} adds in an order that differs from run to run"
    LEFT_ON_HOST = "left-on-host", "it leaves its result on the host, which stays there"
    UNKNOWN_OPERATOR = (
        "unknown-operator",
        "{op} is an operator of {domain} whose effects we don't know",
    )
    UNKNOWN_DOMAIN = (
        "unknown-domain",
        "{op} is of the domain {domain!r}, whose effects we don't know",
    )
    TAKEN = "taken", "ONNX Runtime's optimizers would take nodes away"
    EXCLUDED = "excluded", "it was left out (--include, --exclude)"

    def of(self, op_type: str, domain: str) -> str:
        """Fill the sentence in for an operation of this type."""
        return self.sentence.format(op=op_type, domain=domain or "ai.onnx")


class WhyStay(_Reason):
    """Why a tensor is not copied to the host."""

    NO_BYTES = "no-bytes", "it has no bytes"
    ON_HOST = "on-host", "it is on the host already"
    PAGED = "paged", "it lives on the host, and can be copied to the device again"
    OPAQUE = "opaque", "it is a sequence or holds strings"
    TAKEN = "taken", "ONNX Runtime's optimizers would take nodes away"
    EXCLUDED = "excluded", "it was left out (--include, --exclude)"
    HOST_BUDGET = "host-budget", "the host budget has no room for it"
    SMALL = "small", "it is smaller than any tensor that may be copied (--min-tensor)"


class WhyClosed(_Reason):
    """Why a lever is closed for all operations and tensors."""

    NOT_ASKED = "not-asked", "the plan was asked for without it (--swap)"
    NO_KERNEL = (
        "no-kernel",
        "onnxruntime-training's CPU provider has no kernel for copies to the host",
    )
    TOO_MANY = "too-many", "too many operations would have to run again"


Reason = WhyOnce | WhyStay | WhyClosed


def why_once(effect: Effect) -> WhyOnce | None:
    """Return why an operation of this effect may not run a second time; None for a pure one."""
    return None if effect is Effect.PURE else WhyOnce[effect.name]

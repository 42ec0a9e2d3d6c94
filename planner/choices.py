"""The words that a request chooses by, and that a plan file records."""

from __future__ import annotations

from typing import Literal

Swap = Literal["auto", "none", "only"]
"""Copies to the host: never, when they pay, or in place of recompute."""

Copies = Literal["serial", "overlapped", "auto"]
"""Copies on the stream of the operations, beside them, or beside them where that was shown to be safe
(`planner.pipeline.prepare.copies`)."""

Recompute = Literal["auto", "none", "only"]
"""Operations run again: when it pays, never, or in place of copies."""

OrderTarget = Literal["default", "priority"]
"""The session option that a rewritten model is made for."""

BudgetOf = Literal["held", "live"]
"""What a budget bounds: all that a session holds that `planner.open_session` opens, or the bytes of
tensors that are alive."""

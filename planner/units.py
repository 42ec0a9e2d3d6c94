"""Bytes, durations and other numbers: parse what people type, print what people read.

Decimal and binary units are different units here: GB = 10**9 bytes, GiB = 2**30 bytes. A bare
`16` or `16G` could mean either and is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

from planner.errors import UsageError
from planner.files.reading import MAX_BYTES, shown

Number = TypeVar("Number", int, float)

_FACTORS: dict[str, int] = {"B": 1}
_FACTORS.update({f"{p}B": 1000**i for i, p in enumerate("KMGTP", start=1)})
_FACTORS.update({f"{p}iB": 1024**i for i, p in enumerate("KMGTP", start=1)})
_BY_LOWER = {name.lower(): factor for name, factor in _FACTORS.items()}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]+)\s*\Z")
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*%\s*\Z")
MAX_SEED = 2**31 - 1
_A_YEAR_S = 365 * 24 * 3600
_MAX_DIGITS = 100
_MAX_WHOLE_DIGITS = 19


def parse_bytes(text: str, *, what: str = "size", zero_ok: bool = False, or_else: str = "") -> int:
    """Parse a size: `"16GB"` -> 16_000_000_000, `"1.5 GiB"` -> 1_610_612_736; round down to whole
    bytes.

    Args:
        what: name of the size, for the message.
        zero_ok: whether `"0B"` is a size.
        or_else: end of the message about a missing unit, such as other forms that the option takes.

    Raises:
        UsageError: no unit, an unknown unit, or a size that is not positive.
    """
    match = _SIZE.match(_short(text, what))
    if match is None or match[2].lower() not in _BY_LOWER:
        hint = "give a number with a unit, such as 16GB (10^9 bytes) or 16GiB (2^30 bytes)"
        if re.fullmatch(r"\s*[\d.]+\s*[KMGTP]?\s*", text):
            hint = f"{text.strip()} is ambiguous: {hint}"
        raise UsageError(f"{what} {text!r} is not understood; {hint}{or_else}")
    size = math.floor(Fraction(match[1]) * _BY_LOWER[match[2].lower()])
    if size <= 0 and not (zero_ok and Fraction(match[1]) == 0):
        raise UsageError(f"{what} {text!r} must be more than 0 bytes")
    return size


def _share(text: str) -> str:
    """Return an offer to read `"0.6"` as a share of the peak, 60%; "" where the text is no share."""
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        return ""
    return f", or {float(100 * share):g}%, a share of the peak" if 0 < share <= 1 else ""


def parse_whole(text: str) -> int | None:
    """Parse a whole number exactly; return None unless it is one of at most 19 digits."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text.lstrip("0")) <= _MAX_WHOLE_DIGITS):
        return None
    return int(text.lstrip("0") or "0")


def _short(text: str, what: str) -> str:
    """Return `text`; raise UsageError where it is too long to be a number that somebody means."""
    if len(text) > _MAX_DIGITS:
        raise UsageError(
            f"{what} {shown(text)} has {len(text)} characters; give at most {_MAX_DIGITS}"
        )
    return text


def parse_budget(text: str, *, baseline_bytes: int) -> int:
    """Return a budget in bytes from `"16GB"`, `"12 GiB"`, or `"60%"` of `baseline_bytes`.

    Raises:
        UsageError: not a size or percentage, or a percentage outside (0, 100].
    """
    match = _PERCENT.match(_short(text, "budget"))
    if match is None:
        size = parse_bytes(text, what="budget", or_else=_share(text))
        if size > MAX_BYTES:
            raise UsageError(
                f"budget {text!r} is above {MAX_BYTES} bytes, as far as planner counts"
            )
        return size
    percent = Fraction(match[1])
    if not 0 < percent <= 100:
        raise UsageError(f"budget {text!r} must lie in (0%, 100%] of the baseline peak")
    return max(1, math.floor(percent * baseline_bytes / 100))


def parse_percent(text: str) -> Fraction | None:
    """Parse a percentage as a share: `"5%"` -> 1/20; None where it is not one."""
    match = _PERCENT.match(_short(text, "percentage"))
    return None if match is None else Fraction(match[1]) / 100


def parse_slowdown(text: str) -> float:
    """Parse a percentage as a share: `"5%"` -> 0.05.

    Raises:
        UsageError: not a percentage of 0 or more.
    """
    match = _PERCENT.match(_short(text, "slowdown"))
    if match is None:
        raise UsageError(f"slowdown {text!r} is not understood; give a percentage, such as 5%")
    return float(Fraction(match[1]) / 100)


def check_budget(text: str) -> None:
    """Raise UsageError where `text` can never be a budget, before any model is read."""
    parse_budget(text, baseline_bytes=1 << 40)


def check_time_limit(seconds: float, *, what: str = "--time-limit") -> None:
    """Raise UsageError unless `seconds` is a positive time of at most a year."""
    if not 0 < seconds <= _A_YEAR_S:
        raise UsageError(
            f"{what} {seconds:g} must be a positive number of seconds, at most {_A_YEAR_S}"
        )


def check_seed(seed: int) -> None:
    """Raise UsageError unless every random number generator of planner takes `seed`."""
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(f"seed {shown(seed)} must lie from 0 to {MAX_SEED}")


def format_bytes(size: int, *, decimal: bool = False, up: bool = False) -> str:
    """Format a size: `1610612736` -> `1.50 GiB` (`1.61 GB` with `decimal`); exact below 1 KiB.

    Args:
        up: round up, so that the text, typed as a budget, is at least `size`.
    """
    base, prefixes, suffix = (1000, "KMGTP", "B") if decimal else (1024, "KMGTP", "iB")
    if abs(size) < base:
        return f"{size} B"
    value, factor = float(size), 1
    for prefix in prefixes:
        value, factor = value / base, factor * base
        if abs(value) < base * 0.9995 or prefix == prefixes[-1]:
            if up:
                hundredths = -(-100 * size // factor)
                return f"{hundredths // 100}.{hundredths % 100:02d} {prefix}{suffix}"
            return f"{value:.2f} {prefix}{suffix}"
    raise AssertionError("unreachable")


def format_both(size: int) -> str:
    """Format a size in both units: `16000000000` -> `16.00 GB = 14.90 GiB`."""
    return f"{format_bytes(size, decimal=True)} = {format_bytes(size)}"


def format_budget(size: int) -> str:
    """Format a size in both units, rounded up: either one, typed as a budget, is at least `size`
    bytes."""
    return f"{format_bytes(size, decimal=True, up=True)} = {format_bytes(size, up=True)}"


def counted(count: int, noun: str, verb: str = "") -> str:
    """Return a number of things, and their verb: `1 node is`, `1,200 nodes are`.

    Args:
        verb: "are", or another one in the plural.
    """
    if count == 1:
        said = "is" if verb == "are" else f"{verb}s" if verb else ""
        return f"1 {noun} {said}".rstrip()
    return f"{count:,} {noun}s {verb}".rstrip()


def signed(text_of: Callable[[Number], str], value: Number) -> str:
    """Format a difference by `text_of`, with its sign: `+1.00 KiB`."""
    return ("+" if value > 0 else "") + text_of(value)


def typed_size(size: int) -> str:
    """Write a size to type on a command line, rounded up: `14942208` -> `14.95MB`."""
    return format_bytes(size, decimal=True, up=True).replace(" ", "")


def format_duration(microseconds: float) -> str:
    """Format a time: `1234.5` -> `1.23 ms`."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if abs(microseconds) >= factor:
            return f"{microseconds / factor:.2f} {unit}"
    return f"{microseconds:.1f} µs"


def format_share(ratio: float) -> str:
    """Format a share as a percentage that is rounded up: `0.66201` -> `66.21%`. Typed as a budget, it
    suffices."""
    return f"{math.ceil(round(1e4 * ratio, 6)) / 100:.2f}%"


def format_part(part_us: float, base_us: float) -> str:
    """Format a part of a time as a percentage of it; as a duration where that time is 0."""
    return format_percent(part_us / base_us) if base_us else format_duration(part_us)


def format_percent(ratio: float) -> str:
    """Format a ratio as a percentage: `0.0312` -> `3.12%`."""
    return f"{100 * ratio:.2f}%"


def parse_micro_batch(text: str) -> int | None:
    """Parse the number of micro-batches: `"4"` -> 4 runs; `"auto"` -> None.

    Raises:
        UsageError: neither.
    """
    if text == "auto":
        return None
    if text.isascii() and text.isdecimal() and 1 <= len(text) <= 9 and int(text) >= 1:
        return int(text)
    said = repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
    raise UsageError(f"--micro-batch is auto or a number of runs from 1 up, not {said}")


def some_of(names: Sequence[str], most: int) -> str:
    """List the first names of several: `"a, b and 2 more"`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

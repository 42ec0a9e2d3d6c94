"""`--fail-if-peak-above` and `--fail-if-slower-than`: thresholds that fail a continuous-integration
job.

Thresholds are parsed before any work, and checked after every file is written. A figure at the
threshold passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

from planner.errors import ThresholdError, UsageError
from planner.request.asking import VERIFICATION
from planner.units import format_both, format_percent, parse_bytes, parse_percent

if TYPE_CHECKING:
    from planner.report.document.diff import DiffDocument
    from planner.report.document.headline import Headline

PeakAbove = Annotated[
    str | None,
    typer.Option(
        "--fail-if-peak-above",
        metavar="SIZE|PERCENT",
        help="Exit with code 7 if the peak is larger than this (90%: of the peak before).",
        rich_help_panel=VERIFICATION,
    ),
]
SlowerThan = Annotated[
    str | None,
    typer.Option(
        "--fail-if-slower-than",
        metavar="PERCENT",
        help="Exit with code 7 if the step is slower than before by more than this.",
        rich_help_panel=VERIFICATION,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds that the user typed, parsed.

    Attributes:
        peak_bytes: the most bytes; peak_share: the most as a share of the peak before.
        slower: the most that may be added to the original time, as a share of it.
    """

    peak_bytes: int | None = None
    peak_share: Fraction | None = None
    slower: Fraction | None = None

    def peak_limit(self, before_bytes: int) -> int | None:
        """Return the most bytes, given the peak before; None where there is no limit."""
        if self.peak_share is not None:
            return int(self.peak_share * before_bytes)
        return self.peak_bytes


def parse_thresholds(peak_above: str | None, slower_than: str | None) -> Thresholds:
    """Parse the thresholds from the options' texts.

    Raises:
        UsageError: a text is neither a size nor a percentage.
    """
    size = share = slower = None
    if peak_above is not None:
        share = parse_percent(peak_above)
        if share is None:
            size = parse_bytes(peak_above, what="--fail-if-peak-above")
        elif not share:
            raise UsageError("--fail-if-peak-above 0% can never hold; give more than 0%")
    if slower_than is not None:
        slower = parse_percent(slower_than)
        if slower is None:
            raise UsageError(
                f"--fail-if-slower-than {slower_than!r} is not a percentage, such as 5%"
            )
    return Thresholds(peak_bytes=size, peak_share=share, slower=slower)


def check_optimized(thresholds: Thresholds, headline: Headline) -> None:
    """Check the planned and the measured figures of `planner optimize`.

    Raises:
        ThresholdError: a figure is above its threshold; the message names all such figures.
    """
    peaks = [("planned peak", headline.peak_after_bytes)]
    if headline.measured_peak_after_bytes is not None:
        found = f"{headline.measured_peak_after_how} peak"
        peaks.append((found, headline.measured_peak_after_bytes))
    times = [
        ("predicted step time", headline.predicted_time_ratio),
        ("measured step time", headline.measured_time_ratio),
    ]
    _check(thresholds, headline.peak_before_bytes, peaks, times, than="the original's")


def check_compared(thresholds: Thresholds, document: DiffDocument) -> None:
    """Check the planned figures of plan b against those of plan a.

    Raises:
        ThresholdError: a figure is above its threshold.
    """
    peaks = [("planned peak of the second plan", document.peak.b)]
    times = [("predicted step time of the second plan", document.step_ratio)]
    _check(thresholds, document.peak.a, peaks, times, than="the first's")


def _check(
    thresholds: Thresholds,
    before_bytes: int,
    peaks: list[tuple[str, int]],
    times: list[tuple[str, float | None]],
    *,
    than: str,
) -> None:
    above: list[str] = []
    limit = thresholds.peak_limit(before_bytes)
    if limit is not None:
        above += [
            f"the {what}, {format_both(size)}, is above {format_both(limit)} (--fail-if-peak-above)"
            for what, size in peaks
            if size > limit
        ]
    if thresholds.slower is not None:
        most = 1 + float(thresholds.slower)
        above += [
            f"the {what} is {format_percent(ratio - 1)} above {than}, more than "
            f"{format_percent(float(thresholds.slower))} (--fail-if-slower-than)"
            for what, ratio in times
            if ratio is not None and not ratio <= most
        ]
    if above:
        raise ThresholdError("; ".join(above))

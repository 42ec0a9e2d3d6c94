"""What a model would take if its tensors were stored in another way: document and table."""

from __future__ import annotations

from typing import Any

from planner.report.views import TAXONOMY, taxonomy_of
from planner.results import Analysis
from planner.units import format_bytes, format_percent

WHAT_IF_TITLE = "What other ways to store it would take (estimated; the results would be others)"
WHAT_IF_COLUMNS = ("as", ">peak", ">of it now", *(f">{group}" for group in TAXONOMY))


def what_if_payload(analysis: Analysis) -> list[dict[str, Any]]:
    """One document for each way that was asked for."""
    peak_bytes = analysis.default.timeline.peak_bytes
    return [
        {
            "as": estimate.what_if,
            "peak_bytes": estimate.peak_bytes,
            "peak_step": estimate.peak_step,
            "peak_saved_bytes": peak_bytes - estimate.peak_bytes,
            "composition_at_peak": {str(c): n for c, n in sorted(estimate.composition.items())},
            "taxonomy_at_peak": taxonomy_of(estimate.composition),
            "assumptions": list(estimate.assumptions),
        }
        for estimate in analysis.what_if
    ]


def what_if_rows(payload: dict[str, Any]) -> list[list[object]]:
    """A row for the model as it is, where there are others, and one for each of those."""
    view, asked = payload["view"], payload["what_if"]
    if not asked:
        return []
    peak = view["peak_bytes"] or 1
    return [
        [name, format_bytes(bytes_), format_percent(bytes_ / peak), *map(format_bytes, parts)]
        for name, bytes_, parts in (
            ("it is", view["peak_bytes"], view["taxonomy_at_peak"].values()),
            *((e["as"], e["peak_bytes"], e["taxonomy_at_peak"].values()) for e in asked),
        )
    ]


def what_if_assumptions(payload: dict[str, Any]) -> list[str]:
    """What is assumed for any of them, each sentence once."""
    return list(dict.fromkeys(text for e in payload["what_if"] for text in e["assumptions"]))

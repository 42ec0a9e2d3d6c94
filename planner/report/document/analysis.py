"""The document of `planner analyze`: the model as it is, and the peaks that plans could reach."""

from __future__ import annotations

from typing import Literal

import msgspec

from planner import __version__
from planner.plan.planfile import PredictedCost
from planner.report import narrative
from planner.report.document import Document, told, unique
from planner.report.document.budgets import PreviewDocument, preview_document
from planner.report.document.views import (
    ViewDocument,
    view_document,
)
from planner.report.narrative import ProvenanceRow
from planner.results import Analysis


class AnalysisHeadline(Document, frozen=True):
    """The peak, the peaks that plans can reach, and their bounds.

    The bounds are for all tensors on the device, and for inputs and outputs on the host where that is
    possible.
    """

    peak_bytes: int
    persistent_bytes: int
    time_us: float
    best_order_peak_bytes: int
    best_order_name: str
    least_peak_bytes: int
    least_peak_levers: str
    least_peak_bound_bytes: int
    least_peak_on_host_bytes: int | None
    least_peak_on_host_bound_bytes: int | None
    sentence: str


class AnalyzeDocument(Document, kw_only=True, frozen=True):
    """The document of `planner analyze`."""

    schema: Literal["planner.analyze/1"] = "planner.analyze/1"
    planner_version: str = __version__
    model: str
    model_sha256: str
    dims: dict[str, int]
    hardware: str
    cost_source: str
    ort_optimized: bool
    headline: AnalysisHeadline
    best_order: PredictedCost
    view: ViewDocument
    budget_preview: PreviewDocument | None
    assumptions: tuple[str, ...]
    provenance: tuple[ProvenanceRow, ...]

    @property
    def views(self) -> dict[str, ViewDocument]:
        """The model, by key."""
        return {"view": self.view}


def analyze_document(analysis: Analysis) -> AnalyzeDocument:
    """Make the document of `planner analyze`."""
    return told(
        AnalyzeDocument,
        analysis,
        model=str(analysis.model_path),
        headline=_headline(analysis),
        view=view_document(analysis.default),
        budget_preview=preview_document(analysis.budget_preview),
        assumptions=unique(analysis.assumptions, analysis.default.graph.assumptions),
        provenance=narrative.analysis_provenance(analysis),
    )


def _headline(analysis: Analysis) -> AnalysisHeadline:
    line, on_host = analysis.default.timeline, analysis.on_host
    head = told(
        AnalysisHeadline,
        analysis,
        line,
        time_us=analysis.default.time_us,
        best_order_peak_bytes=analysis.best_order.peak_bytes,
        least_peak_levers=" and ".join(analysis.levers),
        least_peak_on_host_bytes=on_host.peak_bytes if on_host else None,
        least_peak_on_host_bound_bytes=on_host.bound_bytes if on_host else None,
        sentence="",
    )
    return msgspec.structs.replace(head, sentence=narrative.analysis_sentence(head))

"""What `--json` prints and the pages show: one document per result, from which every number comes.

Each document names its `schema`. Sizes are integer bytes (`*_bytes`), durations microseconds
(`*_us`), ratios plain numbers (1.25 = 25% slower); a figure that was not obtained is null, and one
that JSON cannot hold is "nan", "inf" or "-inf".
"""

from __future__ import annotations

from typing import Any

from planner import __version__
from planner.files.structuring import fields_of
from planner.graph.rules import SWAP_OPERATORS
from planner.plan.planfile import Decision, Plan
from planner.report import narrative
from planner.report.frontier import frontier_payload
from planner.report.held import default_bits_payload, held_headline, sessions_payload
from planner.report.next_steps import next_steps
from planner.report.session_code import arena_of, library_code, session_code, step_code
from planner.report.views import micro_payload, number, picked, view_payload
from planner.report.what_if import what_if_payload
from planner.results import (
    Analysis,
    BudgetPreview,
    CopyCheck,
    MemoryCheck,
    MicroCheck,
    OptimizeResult,
    TimeCheck,
    Verification,
)

OPTIMIZE_SCHEMA = "planner.optimize/1"
ANALYZE_SCHEMA = "planner.analyze/1"
VERIFY_SCHEMA = "planner.verify/1"
_WORST_NODES = 20
_MIB = 1 << 20


def optimize_payload(result: OptimizeResult) -> dict[str, Any]:
    """The document of `planner optimize`."""
    plan, verification = result.plan, result.verification
    headline = _headline(result)
    model = result.output_path.name if result.output_path else "model.planned.onnx"
    preview = _budget_preview(result.budget_preview)
    return {
        "schema": OPTIMIZE_SCHEMA,
        "planner_version": __version__,
        "model": str(result.model_path),
        "outputs": {
            "model": _path(result.output_path),
            "plan": _path(result.plan_path),
            "report": _path(result.report_path),
            "trace": _path(result.trace_path),
        },
        "headline": {**headline, "sentence": narrative.optimize_sentence(headline)},
        "plan": _plan(plan),
        "decisions": [_decision(d) for d in plan.decisions],
        "before": view_payload(result.before, plan.decisions),
        "after": view_payload(result.after, plan.decisions),
        "verification": verification_body(verification) if verification else None,
        "assumptions": _unique(
            plan.assumptions, result.before.graph.assumptions, result.after.graph.assumptions
        ),
        "session_code": _session_code(result, model)
        + step_code(plan.micro, result.plan_path.name if result.plan_path else "model.plan.json"),
        "budget_preview": preview,
        "next_steps": next_steps(result, preview),
        "provenance": narrative.provenance(headline, plan, verification),
    }


def _session_code(result: OptimizeResult, model: str) -> str:
    plan = result.plan
    is_library = any(op.op_type in SWAP_OPERATORS for op in result.after.graph.operations)
    if is_library or plan.pool is not None:
        return library_code(model)
    return session_code(
        model,
        order_target=plan.order_target,
        device=plan.device,
        optimized=plan.ort_optimized,
        budget_bytes=max([plan.budget_bytes, *(a.total_bytes for a in result.after.arena)]),
        arena=arena_of(plan, result.verification),
    )


def analysis_payload(analysis: Analysis) -> dict[str, Any]:
    """The document of `planner analyze`."""
    on_host = analysis.on_host
    headline = {
        "peak_bytes": analysis.default.timeline.peak_bytes,
        "persistent_bytes": analysis.default.timeline.persistent_bytes,
        "time_us": number(analysis.default.time_us),
        "best_order_peak_bytes": analysis.best_order.peak_bytes,
        "best_order_name": analysis.best_order_name,
        "least_peak_bytes": analysis.least_peak_bytes,
        "least_peak_levers": " and ".join(analysis.levers),
        "least_peak_bound_bytes": analysis.least_peak_bound_bytes,
        "least_peak_on_host_bytes": on_host.found_bytes if on_host else None,
        "least_peak_on_host_bound_bytes": on_host.bound_bytes if on_host else None,
    }
    return {
        "schema": ANALYZE_SCHEMA,
        "planner_version": __version__,
        "model": str(analysis.model_path),
        "model_sha256": analysis.model_sha256,
        "dims": dict(analysis.dims),
        "hardware": analysis.hardware,
        "cost_source": analysis.cost_source,
        "ort_optimized": analysis.ort_optimized,
        "headline": {**headline, "sentence": narrative.analysis_sentence(headline)},
        "best_order": picked(analysis.best_order),
        "view": view_payload(analysis.default),
        "budget_preview": _budget_preview(analysis.budget_preview),
        "what_if": what_if_payload(analysis),
        "assumptions": _unique(analysis.assumptions, analysis.default.graph.assumptions),
        "provenance": narrative.analysis_provenance(analysis),
    }


def verification_payload(verification: Verification) -> dict[str, Any]:
    """The document of `planner verify`."""
    return {
        "schema": VERIFY_SCHEMA,
        "planner_version": __version__,
        **verification_body(verification),
    }


def _headline(result: OptimizeResult) -> dict[str, Any]:
    plan, verification = result.plan, result.verification
    planned, baseline = plan.planned, plan.baseline
    time = verification.time if verification else None
    held = held_headline(result)
    fits = planned.peak_bytes + plan.reserve_bytes <= plan.budget_bytes
    if plan.budget_of == "held" and held["held_bytes"] is not None:
        fits = fits and held["held_bytes"] + plan.reserve_bytes <= plan.budget_bytes
    return {
        "verdict": narrative.verdict(fits, plan, verification),
        "fits": fits,
        "verified": verification.passed if verification else None,
        **picked(plan, "unchanged", "budget_text", "budget_bytes", "reserve_bytes", "budget_of"),
        **picked(plan, "host_budget_bytes", "gap", "proved_optimal", "copies", "one_stream_us"),
        "peak_before_bytes": baseline.peak_bytes,
        "peak_after_bytes": planned.peak_bytes,
        "order_alone_peak_bytes": plan.best_order.peak_bytes,
        "peak_saved_bytes": baseline.peak_bytes - planned.peak_bytes,
        **held,
        **_measured_peaks(verification),
        "time_before_us": number(baseline.time_us),
        "time_after_us": number(planned.step_us),
        "predicted_time_ratio": _ratio(planned.step_us, baseline.time_us),
        "measured_time_before_us": _least(time, "original"),
        "measured_time_after_us": _least(time, "rewritten"),
        "measured_time_ratio": number(time.ratio) if time else None,
        **picked(planned, but=("peak_bytes", "time_us")),
        "split_nodes": sum(len(r.nodes) for together in plan.split for r in together),
        "split_regions": sum(map(len, plan.split)),
        "split_chunks": max((r.chunks for together in plan.split for r in together), default=0),
        "fused_nodes": plan.fused_nodes,
        "cast_saved": plan.cast_saved if plan.halved else None,
        "worst_rms_rel_diff": _worst_rms(verification),
        "disk": None if plan.disk is None else fields_of(plan.disk),
        "copies_sentence": narrative.copies_sentence(plan),
        "micro": None
        if plan.micro is None
        else {"runs": plan.micro.runs, "samples": plan.micro.batch // plan.micro.runs},
    }


def _worst_rms(verification: Verification | None) -> float | str | None:
    """The largest root mean square difference of an output, by its own; None where nothing ran."""
    outputs = verification.outputs if verification else ()
    return number(max((o.rms_rel_diff for o in outputs), default=None))


def _measured_peaks(verification: Verification | None) -> dict[str, Any]:
    """Live peak of each model as ONNX Runtime showed it, and how.

    Under the recommended session options where those were run, and beside it under the default
    ones, which keep freed buffers for later reuse.
    """
    found: dict[str, Any] = {}
    for model, key in (("original", "before"), ("rewritten", "after")):
        checks = [m for m in (verification.memory if verification else ()) if m.model == model]
        checks.sort(key=lambda m: m.options != "recommended")
        found[f"measured_peak_{key}_bytes"] = checks[0].live_bytes if checks else None
        found[f"measured_peak_{key}_how"] = checks[0].how if checks else None
        plain = [m.live_bytes for m in checks if m.options == "default"]
        found[f"default_options_peak_{key}_bytes"] = plain[0] if plain else None
    return found


def _budget_preview(preview: BudgetPreview | None) -> dict[str, Any] | None:
    if preview is None:
        return None
    binding = preview.binding
    return {
        "frontier": frontier_payload(preview.frontier),
        "us_per_mib": None if binding is None else sum(b.us_per_byte for b in binding) * _MIB,
        "binds": None
        if binding is None
        else [
            {"node": b.node, "step": b.step, "us_per_mib": b.us_per_byte * _MIB} for b in binding
        ],
        "seconds": number(preview.seconds),
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        **picked(plan, "version", "model_name", "model_sha256", "hardware", "cost_source"),
        **picked(plan, "max_slowdown", "swap_mode", "copies", "resident", "cast_saved", "halved"),
        **picked(plan, "fuse", "fused_nodes"),
        **picked(plan, "pattern", "numbers", "feeds", "device", "assumed", "order_target"),
        **picked(plan, "ort_optimized", "engine", "solve_s", "seed", "least_peak_bytes"),
        **picked(plan, "least_peak_bound_bytes", "bound_us", "bound_class"),
        "dims": dict(plan.dims),
        "binds": plan.binds or None,
        "split": [[fields_of(region) for region in together] for together in plan.split],
        "micro": None if plan.micro is None else micro_payload(plan.micro),
        "baseline": picked(plan.baseline),
        "best_order": picked(plan.best_order),
        "planned": picked(plan.planned),
        "actions": len(plan.schedule),
        "binding": [{"tensor": name, "bytes": size} for name, size in plan.binding],
        "barred": [
            {"action": bar.action, "name": bar.name, "reason_code": bar.reason_code}
            for bar in plan.barred
        ],
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "tensor": decision.tensor,
        "bytes": decision.bytes,
        "category": decision.category,
        "action": decision.action,
        "start": decision.start,
        "end": decision.end,
        "cost_us": number(decision.cost_us),
        "recompute_us": number(decision.recompute_us),
        "swap_us": number(decision.swap_us),
        "why": decision.why,
        "reason_code": decision.reason_code or None,
    }


def verification_body(v: Verification) -> dict[str, Any]:
    """What ONNX Runtime said, check by check."""
    return {
        **picked(v, "passed", "failures", "notes", "ort_version", "provider", "device"),
        **picked(v, "seed", "inputs_source"),
        "outputs": [picked(o) for o in v.outputs],
        "orders": [picked(o) for o in v.orders],
        "memory": [_memory(m) for m in v.memory],
        "caps": [picked(c, "model", "cap_bytes", "passed", "expected", "message") for c in v.caps],
        "sessions": sessions_payload(v.sessions),
        "default_bits": default_bits_payload(v.default_bits),
        "time": _time(v.time),
        "copies": _copies(v.copies),
        "micro": None if v.micro is None else _micro(v.micro),
    }


def _memory(check: MemoryCheck) -> dict[str, Any]:
    nodes = check.per_node
    return {
        **picked(check, but=("per_node",)),
        "nodes": len(nodes),
        "nodes_equal": sum(a == b for _, a, b in nodes),
        "worst": [_node(*row) for row in check.worst[:_WORST_NODES]],
        "per_node": {
            "node": [name for name, _, _ in nodes],
            "predicted_bytes": [predicted for _, predicted, _ in nodes],
            "measured_bytes": [measured for _, _, measured in nodes],
        },
    }


def _micro(check: MicroCheck) -> dict[str, Any]:
    return {
        **picked(check),
        "outputs": [picked(o) for o in check.outputs],
        "worst": check.worst or None,
        "note": check.note or None,
    }


def _copies(copies: CopyCheck | None) -> dict[str, Any] | None:
    if copies is None:
        return None
    return {
        "planned": copies.planned,
        "planned_bytes": copies.planned_bytes,
        "ran": copies.ran,
        "missing": list(copies.missing),
        "extra": [{"node": name, "bytes": size} for name, size in copies.extra],
    }


def _node(name: str, predicted: int, measured: int) -> dict[str, Any]:
    return {"node": name, "predicted_bytes": predicted, "measured_bytes": measured}


def _time(time: TimeCheck | None) -> dict[str, Any] | None:
    if time is None:
        return None
    return {
        "original_us": [number(t) for t in time.original_us],
        "rewritten_us": [number(t) for t in time.rewritten_us],
        "original_least_us": _least(time, "original"),
        "rewritten_least_us": _least(time, "rewritten"),
        "ratio": number(time.ratio),
    }


def _least(time: TimeCheck | None, model: str) -> float | str | None:
    if time is None:
        return None
    samples = time.original_us if model == "original" else time.rewritten_us
    return number(min(samples)) if samples else None


def _ratio(after: float, before: float) -> float | str | None:
    return number(after / before) if before else None


def _path(path: object) -> str | None:
    return None if path is None else str(path)


def _unique(*groups: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(text for group in groups for text in group))

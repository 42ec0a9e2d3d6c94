"""ONNX Runtime's classes as a script under `planner run` sees them: subclasses that open by an
`Opener`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from planner.errors import UsageError
from planner.running.asked import Asked
from planner.running.hooks import on_import
from planner.running.opening import Opener, Wanted, is_by_planner
from planner.runtime.capture import REFUSED, on_the_host
from planner.targets import HOST

if TYPE_CHECKING:
    import onnxruntime as ort


def take_over(opener: Opener) -> None:
    """Make `opener` open every session and training module that this process creates from now on.

    Sessions that planner's own functions create, to measure what options do, are left alone.
    """
    on_import(
        {
            "onnxruntime.capi.onnxruntime_inference_collection": _replacing(
                "InferenceSession", lambda theirs: _session(theirs, opener, _is_planners)
            ),
            "onnxruntime.training.api.module": _replacing(
                "Module", lambda theirs: _module(theirs, opener)
            ),
        }
    )


def open_session(
    model: Path | str | bytes,
    sess_options: Any = None,
    providers: Sequence[Any] | None = None,
    provider_options: Sequence[Mapping[str, Any]] | None = None,
    *,
    pool: str | None = None,
    disk: Path | str | None = None,
    graph_capture: bool = False,
) -> ort.InferenceSession:
    """Open an `onnxruntime.InferenceSession` of a file that planner wrote, with all that the file
    needs.

    It sets the optimization level, the execution order and the providers, switches memory pattern and
    reuse off, and adds a pool or an arena of the bytes that one step takes. Results are copied out of
    it: the session stays within these bytes whatever the caller keeps.

    Args:
        model: a path, or the serialized model. A model that planner did not write is opened as it is.
        sess_options, providers, provider_options: as ONNX Runtime's session takes them. They stay;
            contradictions with the file are reported on stderr.
        pool: "24GB": a pool of exactly that many bytes in place of the file's memory (`planner.native`);
            "plan": of the plan's size. It refuses requests beyond it, on the CPU and on CUDA.
        disk: the folder for the swaps of a file that was planned for a disk (`planner.disk`); None for
            `PLANNER_DISK`, or `TMPDIR`, or `/var/tmp`.
        graph_capture: record the launches of a step on CUDA or WebGPU, and replay them as one graph
            (ONNX Runtime's graph capture). The session runs by `planner.bind` alone, which keeps all
            values at the addresses of the record. It takes no pool: its pages move.

    Raises:
        UsageError: the file was planned for another kind of processor, or has metadata that planner does
            not write; or it cannot be captured, and the message names why.
    """
    import onnxruntime as ort

    if pool is not None and not is_by_planner(model):
        raise UsageError(
            "only files that planner wrote can open in a pool: use planner.session_options for others"
        )
    if graph_capture and (pool is not None or not is_by_planner(model)):
        raise UsageError("graph_capture is for files that planner wrote, and takes no pool")
    wanted = Wanted(
        pool=pool, disk=None if disk is None else Path(disk), graph_capture=graph_capture
    )
    opener = Opener(wanted, lambda line: print(f"planner: {line}", file=sys.stderr))
    theirs = _captured(ort.InferenceSession) if graph_capture else ort.InferenceSession
    opened = _session(theirs, opener)
    given = str(model) if isinstance(model, Path) else model
    try:
        session = opened(given, sess_options, providers, provider_options)
    except Exception as error:
        if not graph_capture or REFUSED not in str(error):
            raise
        raise UsageError(on_the_host(model)) from error
    if graph_capture:
        _check_captured(session)
    return session


def _check_captured(session: ort.InferenceSession) -> None:
    from planner.runtime.binding.buffers import is_captured

    if not is_captured(session):
        raise UsageError(
            "the session's own options and providers leave no graph capture: name no devices, and no "
            "other value of the provider's option"
        )


def _captured(theirs: Any) -> type:
    """Return a subclass of ONNX Runtime's session without the ways to run that move its values."""

    def refused(self: Any, *_arguments: Any, **_options: Any) -> Any:
        raise UsageError("a session with graph_capture replays fixed addresses: use planner.bind")

    moving = ("run", "run_async", "run_with_ort_values", "run_with_ortvaluevector")
    return type("InferenceSession", (theirs,), dict.fromkeys(moving, refused))


def _replacing(name: str, made: Callable[[Any], type]) -> Callable[[ModuleType], None]:
    """Return a change that replaces a module's class by one that looks the same."""

    def change(module: ModuleType) -> None:
        theirs = getattr(module, name)
        ours = made(theirs)
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(ours, attribute, getattr(theirs, attribute))
        setattr(module, name, ours)

    return change


def _session(theirs: Any, opener: Opener, is_theirs: Callable[[], bool] = lambda: False) -> type:
    """Return a subclass of ONNX Runtime's session that `opener` opens, unless `is_theirs` returns
    True."""

    class InferenceSession(theirs):
        def __init__(
            self,
            path_or_bytes: Any,
            sess_options: Any = None,
            providers: Any = None,
            provider_options: Any = None,
            **kwargs: Any,
        ) -> None:
            asked = Asked(
                model=path_or_bytes,
                options=sess_options,
                providers=providers,
                provider_options=provider_options,
            )
            self._planner_capped = False
            self._planner_asked = None if is_theirs() else asked
            if self._planner_asked is None:
                super().__init__(path_or_bytes, sess_options, providers, provider_options, **kwargs)
                return
            with opener.opening(asked) as made:
                super().__init__(
                    made.model, made.options, made.providers, made.provider_options, **kwargs
                )
                self._planner_asked = replace(asked, model=made.model)
                self._planner_capped = made.is_capped

        def run(self, *arguments: Any, **options: Any) -> Any:
            """Run the model; copy outputs out of an arena that is as large as one step, for the
            caller to keep."""
            found = super().run(*arguments, **options)
            return [_owned(value) for value in found] if self._planner_capped else found

        def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
            """Create the session again with other providers."""
            if self._planner_asked is None:
                super().set_providers(providers, provider_options)
                return
            asked = replace(
                self._planner_asked, providers=providers, provider_options=provider_options
            )
            with opener.opening(asked) as made:
                super().set_providers(made.providers, made.provider_options)

    return InferenceSession


def _module(theirs: Any, opener: Opener) -> type:
    class Module(theirs):
        def __init__(
            self,
            train_model_uri: Any,
            state: Any,
            eval_model_uri: Any = None,
            device: str = HOST.name,
            session_options: Any = None,
        ) -> None:
            asked = Asked(
                model=train_model_uri,
                options=session_options,
                module_device=device.partition(":")[0],
            )
            with opener.opening(asked) as made:
                super().__init__(made.model, state, eval_model_uri, device, made.options)

    return Module


def _owned(value: Any) -> Any:
    """Return a copy of an array, in memory outside the session's."""
    return value.copy() if hasattr(value, "__array__") else value


def _is_planners() -> bool:
    """Tell whether planner's own code creates the session."""
    frame = sys._getframe(2)
    return str(frame.f_globals.get("__name__", "")).startswith("planner.")

"""Run models on a target: processes that see the device, sessions, bytes.

`Backend` suits a target whose provider is in the onnxruntime wheel and whose memory, if it has its
own, is an arena of ONNX Runtime's. A target's `backend` module overrides what differs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from planner.errors import ModelError, UsageError
from planner.processes.children import run_child
from planner.runtime.device.seen import Seen, look
from planner.runtime.messages import explain
from planner.runtime.swapping import register_for
from planner.targets import HOST, Target

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort

    from planner.graph.model import OpId, TrainingGraph
    from planner.plan.planfile import Arena
    from planner.results import ArenaForecast
    from planner.runtime.options import Memory


class ByteCounter(Protocol):
    """Counts a device's bytes in this process, and refuses requests beyond a cap."""

    def peak_bytes(self) -> int: ...

    def refused(self) -> int: ...

    def reset_peak(self) -> None: ...

    def cap(self, cap_bytes: int) -> None: ...


class Backend:
    """The way one target runs."""

    def __init__(self, target: Target) -> None:
        """Args:
        target: the target's row.
        """
        self.target = target

    # -- what is here --------------------------------------------------------------------------

    def is_installed(self) -> bool:
        """Tell whether the provider is installed; a device may still be missing."""
        import onnxruntime as ort

        return self.target.provider in ort.get_available_providers()

    def why_missing(self) -> str:
        """Say what to install where the provider is missing."""
        import onnxruntime as ort

        target = self.target
        beside = (
            ""
            if target.plugin
            else f" instead of onnx-planner[{HOST.extra}], on a machine with its driver"
        )
        return (
            f"--device {target.name} needs {target.provider}, which this onnxruntime {ort.__version__} "
            f'does not have: install "onnx-planner[{target.extra}]"{beside}'
        )

    def check(self) -> None:
        """Raise UsageError where the installed onnxruntime lacks the provider, or this process sees
        no device."""
        if not self.is_installed():
            raise UsageError(self.why_missing())

    def find(self) -> None:
        """Raise UsageError where it is known that no process started by `start` sees a device."""

    def is_hardware(self) -> bool:
        """Tell whether the device's times are meaningful: it does not run in software."""
        return True

    def look(self) -> Seen:
        """Try a session on the device, in a process of its own."""
        return look(self.target.provider)

    def why_not_fused(self) -> str:
        """Return why the library's fused kernels do not run in this process; "" if they do."""
        return ""

    # -- processes and sessions ----------------------------------------------------------------

    def start(
        self, command: Sequence[str], *, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in a process that sees the device; its output is captured as text.

        Raises:
            subprocess.TimeoutExpired: it was ended after `timeout_s`.
            UsageError: there is no device.
        """
        return run_child(list(command), timeout_s=timeout_s)

    def open(
        self, model: Path, options: ort.SessionOptions, settings: Mapping[str, str]
    ) -> ort.InferenceSession:
        """Open a session whose first provider is the target's, in a process that sees the device.

        ONNX Runtime falls back to the CPU silently where a provider cannot start; this method raises an
        error instead.

        Args:
            settings: provider options, all of them.

        Raises:
            UsageError: the provider does not start; the message says what to do.
            ModelError: the model does not load.
        """
        register_for(options, model)
        return self._session(model, options, settings)

    def _session(
        self, model: Path, options: ort.SessionOptions, settings: Mapping[str, str]
    ) -> ort.InferenceSession:
        import onnxruntime as ort

        target = self.target
        providers = [(target.provider, dict(settings)), HOST.provider]
        try:
            session = ort.InferenceSession(
                str(model), options, providers=providers, enable_fallback=0
            )
        except Exception as error:
            raise ModelError(f"{model}: {explain(str(error))}") from error
        if target.provider not in session.get_providers():
            raise UsageError(
                f"--device {target.name}: {target.provider} does not come up, and ONNX Runtime fell back "
                f"to {', '.join(session.get_providers())}; check the device's driver and libraries"
            )
        return session

    def add_to(self, options: ort.SessionOptions, settings: Mapping[str, str]) -> None:
        """Make `options` open sessions on the device.

        Args:
            settings: provider options, all of them.

        Raises:
            UsageError: the provider is not installed, or sees no device.
        """
        self.check()
        options.add_provider(self.target.provider, dict(settings))

    # -- bytes ---------------------------------------------------------------------------------

    def counter(self) -> ByteCounter | None:
        """Return a counter of the device's bytes in this process; None where none exists."""
        return None

    def forecast(
        self,
        graph: TrainingGraph,
        order: Sequence[OpId],
        memory: Memory = "default",
        arena: Arena | None = None,
    ) -> ArenaForecast:
        """Predict the bytes of a device with a memory of its own over two runs of `graph` in `order`.

        Feeds, initializers and outputs are included, kernels' workspaces are not.

        Args:
            memory: the session options.
            arena: the arena of recommended sessions; None for one that grows by each request.
        """
        from planner.runtime.device.predict.bfc_device import forecast_arena
        from planner.runtime.memory.arena import ArenaSettings, capped
        from planner.runtime.memory.bfc import Growth

        is_default = memory == "default"
        settings = ArenaSettings(pattern=is_default, reuse=is_default, growth=Growth.EXACT)
        if arena is not None and not is_default:
            settings = capped(arena.region_bytes, arena.limit_bytes)
        return forecast_arena(graph, order, settings)

    # -- kernels -------------------------------------------------------------------------------

    def declines(self, node: ir.Node) -> bool:
        """Tell whether the provider leaves a node to the CPU though it has a kernel for it."""
        return False


def backend_of(target: Target) -> Backend:
    """Return the backend of a target; the target of one file for all devices has the host's.

    The environment variable PLANNER_NAME_BACKEND, with the target's NAME, names a module with another
    one, for this process and those that it starts: tests put a device in place by it.
    """
    module = os.environ.get(f"PLANNER_{target.name.upper()}_BACKEND", f"{target.package}.backend")
    made: type[Backend] = importlib.import_module(module).BACKEND
    return made(target)


def runs_here(target: Target) -> bool:
    """Tell whether models can run on the target, judging by the installed packages."""
    return not target.own_memory or backend_of(target).is_installed()

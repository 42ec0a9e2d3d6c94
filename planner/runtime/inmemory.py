"""Models that run from memory, for a comparison: no file is written."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from planner.runtime.options import Opening
from planner.runtime.profile import create_session, run_session

if TYPE_CHECKING:
    import onnxruntime as ort

Array = npt.NDArray[Any]
_FOLDER_KEY = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInMemory:
    """A serialized model; `folder` holds its external data."""

    data: bytes
    folder: Path

    def run(
        self,
        feeds: Mapping[str, Array],
        *,
        opening: Opening,
        seed: int = 0,
        time_limit_s: float | None = None,
    ) -> dict[str, Array]:
        """Return the outputs of one run in a new session on the CPU, by name.

        Args:
            opening: the session's options.
            seed: seed of the session's random numbers.
            time_limit_s: time limit of the run, in seconds; None for none.

        Raises:
            ModelError: ONNX Runtime cannot load or run the model, or not in that time.
        """
        import onnxruntime as ort

        ort.set_seed(seed)
        options = opening.options()
        options.add_session_config_entry(_FOLDER_KEY, str(self.folder.absolute()))
        return run_within(create_session(self.data, options), feeds, time_limit_s)


def run_within(
    session: ort.InferenceSession, feeds: Mapping[str, Array], time_limit_s: float | None
) -> dict[str, Array]:
    """Return the outputs of one run, by name.

    Args:
        time_limit_s: time limit of the run, in seconds; None for none.

    Raises:
        ModelError: ONNX Runtime cannot run the model, or not in that time.
    """
    import onnxruntime as ort

    names = [output.name for output in session.get_outputs()]
    run_options = ort.RunOptions()
    run_options.log_severity_level = 4
    stop = threading.Timer(time_limit_s or 0.0, lambda: setattr(run_options, "terminate", True))
    if time_limit_s is not None:
        stop.start()
    try:
        return dict(zip(names, run_session(session, feeds, run_options), strict=True))
    finally:
        stop.cancel()

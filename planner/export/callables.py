"""The step named on a command line as `MODULE:CALLABLE`, imported and called.

The callable takes no arguments and returns the first arguments of `export_training_graph` as a tuple:
(module, example inputs[, loss function[, targets[, optimizer]]]).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from planner.errors import UsageError

_FIELDS = ("module", "example_inputs", "loss_fn", "targets", "optimizer")


def load_step(text: str) -> dict[str, Any]:
    """Call the callable that `text` names; return arguments of `export_training_graph` by name.

    Args:
        text: `package.module:callable`, searched from the working folder, or `file.py:callable`.

    Raises:
        UsageError: the module cannot be imported or has no such callable, or the callable fails or
            returns something else. The message names the place in the user's source.
    """
    source, colon, name = text.rpartition(":")
    if not colon or not source or not name:
        raise UsageError(f"{text!r} is not MODULE:CALLABLE, as in train:step or train.py:step")
    module = _module(source)
    function = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        made = sorted(key for key, value in vars(module).items() if _is_own(value, module))
        has = f"; it defines {', '.join(made)}" if made else ""
        raise UsageError(f"{source} has no callable {name!r}{has}")
    return _arguments(_call(function, text), text)


def _module(source: str) -> ModuleType:
    """Import the module, with its folder at the front of the search path."""
    path = Path(source)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise UsageError(f"there is no file {source}")
    folder = str((path.parent if is_file else Path()).resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if not is_file:
            return importlib.import_module(source)
        name = f"planner_step_{path.stem}"  # not the stem, which may be the name of a library
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except ModuleNotFoundError as error:
        if error.name == source.partition(".")[0] or error.name == source:
            raise UsageError(
                f"no module named {source!r} here or among the installed ones; run in its folder, "
                "or name the file (FILE.py:CALLABLE)"
            ) from error
        raise UsageError(f"{source} cannot be imported: {_told(error)}") from error
    except SystemExit as error:
        raise UsageError(
            f"{source} ends the process as it is imported; keep what it runs behind "
            "if __name__ == '__main__'"
        ) from error
    except Exception as error:
        raise UsageError(f"{source} cannot be imported: {_told(error)}") from error


def _call(function: Callable[[], Any], text: str) -> Any:
    try:
        return function()
    except Exception as error:
        raise UsageError(f"{text} fails: {_told(error)}; it is called without arguments") from error


def _arguments(result: Any, text: str) -> dict[str, Any]:
    if not isinstance(result, tuple) or not 2 <= len(result) <= len(_FIELDS):
        kind = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise UsageError(
            f"{text} returns {kind}; a tuple (module, example inputs[, loss function[, targets[, "
            "optimizer]]]) is expected"
        )
    return dict(zip(_FIELDS, result, strict=False))


def _told(error: Exception) -> str:
    """Return the error's text with the innermost line of the user's source in its traceback."""
    installed = (os.path.dirname(os.__file__), str(Path(__file__).parent), "<")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(installed):
            return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
    return f"{type(error).__name__}: {error}"


def _is_own(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__

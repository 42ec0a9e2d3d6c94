"""Run a script in this process as Python itself would: arguments, path, exit status, traceback."""

from __future__ import annotations

import io
import os
import runpy
import sys
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType

_PLANNER = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script and its arguments.

    Attributes:
        name: a file, a folder or archive with `__main__.py`, or a module's name.
        arguments: what the script finds behind its own name in `sys.argv`.
        is_module: `name` is a module's, as behind `python -m`.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def run(self) -> None:
        """Run it to its end; what it raises, SystemExit too, goes on to the caller."""
        sys.argv = [self.name, *self.arguments]
        sys.excepthook = _show
        if not sys.flags.safe_path:
            self._set_path()
        if self.is_module:
            if _is_missing(self.name):
                sys.exit(f"planner: error: there is no module {self.name}")
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        elif self._is_folder:
            runpy.run_path(self.name, run_name="__main__")
        else:
            self._run_file()

    @property
    def _is_folder(self) -> bool:
        return os.path.isdir(self.name) or zipfile.is_zipfile(self.name)

    def _set_path(self) -> None:
        """Have imports begin where Python begins them: in the script's folder, or the current one."""
        if self.is_module:
            sys.path[0] = os.getcwd()
        elif self._is_folder:
            del sys.path[0]  # runpy puts the folder itself there
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(self.name))

    def _run_file(self) -> None:
        """Run a file as `__main__`, which stays that module when the script has ended: threads and
        exit handlers still look for it. (`runpy.run_path` puts the former one back.)"""
        main = ModuleType("__main__")
        main.__file__ = os.path.abspath(self.name)
        sys.modules["__main__"] = main
        with io.open_code(main.__file__) as file:
            code = compile(file.read(), main.__file__, "exec", dont_inherit=True)
        exec(code, main.__dict__)


def _is_missing(module: str) -> bool:
    """Whether there is no such module; its packages are imported."""
    try:
        return find_spec(module) is None
    except ModuleNotFoundError as error:
        return error.name is not None and f"{module}.".startswith(f"{error.name}.")
    except (ImportError, ValueError):
        return False  # runpy says what is wrong


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print a traceback that begins in the script."""
    while traceback is not None and _is_before_the_script(traceback):
        traceback = traceback.tb_next
    sys.__excepthook__(kind, error.with_traceback(traceback), traceback)


def _is_before_the_script(traceback: TracebackType) -> bool:
    code = traceback.tb_frame.f_code
    name = traceback.tb_frame.f_globals.get("__name__", "")
    return (
        name == "runpy"
        or Path(code.co_filename).is_relative_to(_PLANNER)
        or _starts_it(code.co_filename)
    )


def _starts_it(file: str) -> bool:
    """Whether a frame is the installed command's own file, or `python -c`."""
    return os.path.basename(file) in ("planner", "planner.exe", "<string>", "<frozen runpy>")

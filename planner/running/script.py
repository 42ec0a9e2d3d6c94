"""Run a script in this process as Python itself would: arguments, path, exit status, traceback."""

from __future__ import annotations

import io
import os
import runpy
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, TracebackType


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script and its arguments.

    Attributes:
        name: a file, a folder or archive with `__main__.py`, or a module's name.
        arguments: the script's arguments, after its name in `sys.argv`.
        is_module: whether `name` is a module's, as after `python -m`.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def run(self) -> None:
        """Run it to its end; its exceptions, SystemExit too, reach the caller."""
        sys.argv = [self.name, *self.arguments]
        sys.excepthook = _show
        main = ModuleType("__main__")  # it outlives the script: threads and exit handlers use it
        sys.modules["__main__"] = main
        if self.is_module:
            _set_path(os.getcwd())
            _run_as_main(self.name, alter_argv=True)
        elif os.path.isdir(self.name) or zipfile.is_zipfile(self.name):
            sys.path[0] = os.path.abspath(self.name)
            _run_as_main("__main__", alter_argv=False)
        else:
            main.__file__ = os.path.abspath(self.name)
            _set_path(os.path.dirname(os.path.realpath(self.name)))
            with io.open_code(main.__file__) as file:
                code = compile(file.read(), main.__file__, "exec", dont_inherit=True)
            exec(code, main.__dict__)


def _set_path(folder: str) -> None:
    """Put the folder first on the import path, where Python puts it."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _run_as_main(module: str, *, alter_argv: bool) -> None:
    """Run a module as `python -m` and `python FOLDER` do; runpy's public functions restore
    `__main__`."""
    run: Callable[[str, bool], object] = runpy._run_module_as_main  # pyright: ignore
    run(module, alter_argv)


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print a traceback that begins in the script, after the last frame of this file."""
    found, frame = traceback, traceback
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == __file__:
            found = frame.tb_next
        frame = frame.tb_next
    sys.__excepthook__(kind, error.with_traceback(found), found)

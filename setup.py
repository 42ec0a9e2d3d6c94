"""Compiles the native library where the package is built; all else is in pyproject.toml.

Planning needs it, so an install fails where no compiler makes it.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# by its path: what planner itself imports is not installed yet
_spec = importlib.util.spec_from_file_location(
    "planner_building", Path(__file__).parent / "planner" / "native" / "building.py"
)
assert _spec and _spec.loader
building = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = building
_spec.loader.exec_module(building)


class BuildNative(build_ext):
    """Compiles the library each time: setuptools compares no headers."""

    compiled_by: building.Compiler | None = None

    def get_ext_filename(self, fullname: str) -> str:
        """Its name has no Python version: it is not a Python module."""
        return str(Path(*fullname.split(".")[:-1], building.library_name()))

    def build_extension(self, ext: Extension) -> None:
        try:
            made = Path(self.get_ext_fullpath(ext.name))
            type(self).compiled_by = building.build(made.parent)
        except building.BuildError as error:
            raise CompileError(
                f"planner's native library, which planning needs, cannot be compiled: {error}. Install a "
                "C++ compiler (Debian: apt install g++), or name one by CXX"
            ) from None

    def copy_extensions_to_source(self) -> None:
        """An editable install's library, in place of that of earlier sources."""
        folder = Path(self.get_finalized_command("build_py").get_package_dir("planner.native"))
        for old in folder.glob("libplanner_native.*.so"):
            old.unlink()
        super().copy_extensions_to_source()


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 of this platform; for any Linux like it, where ziglang compiled."""

    def get_tag(self) -> tuple[str, str, str]:
        compiler = BuildNative.compiled_by
        return "py3", "none", (compiler and compiler.wheel_platform) or super().get_tag()[2]


setup(
    ext_modules=[Extension("planner.native.library", sources=[])],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
    setup_requires=[] if building.system_compiler() else [building.ZIG_REQUIREMENT],
)

"""Change a module as soon as it is imported, and not before.

The script decides when it imports the module, and what it sets first (environment variables,
stand-ins in `sys.modules`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Change = Callable[[ModuleType], None]


def on_import(changes: Mapping[str, Change]) -> None:
    """Call each change with the module of its name once that is imported; at once where it already
    is."""
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
    later = {name: change for name, change in changes.items() if name not in sys.modules}
    if later:
        sys.meta_path.insert(0, _Finder(later))


class _Finder(MetaPathFinder):
    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the other finders, with a loader that makes the change after loading."""
        if name not in self._changes:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Changing(spec.loader, self._changes[name])
                return spec
        return None


class _Changing(Loader):
    def __init__(self, loader: Loader, change: Change) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._change(module)

"""Record the user's source line at which each operator is first called."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from planner.export.lines import line_of_user


class FirstUse(TorchDispatchMode):
    """A mode that records the first call of each operator: the caller's line and the running submodule.

    Attributes:
        lines: source lines by operator; "" if the stack has only PyTorch's frames.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.lines: dict[str, str] = {}
        self._names = {part: name for name, part in module.named_modules()}
        self._running: list[str] = []
        self._hooks = contextlib.ExitStack()

    def __enter__(self):
        before = register_module_forward_pre_hook(self._begin)
        after = register_module_forward_hook(self._end, always_call=True)
        self._hooks.callback(before.remove)
        self._hooks.callback(after.remove)
        return super().__enter__()

    def __exit__(self, *error: Any):
        self._hooks.close()
        return super().__exit__(*error)

    def _begin(self, module: nn.Module, _inputs: Any) -> None:
        self._running.append(self._names.get(module, ""))

    def _end(self, *_: Any) -> None:
        self._running.pop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func) not in self.lines:
            line = line_of_user(traceback.extract_stack())
            within = self._running[-1] if self._running else ""
            self.lines[str(func)] = f"{line} (submodule {within})" if line and within else line
        return func(*args, **(kwargs or {}))

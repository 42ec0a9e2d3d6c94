"""Wrappers around the module that is trained."""

from __future__ import annotations

from torch import nn
from torch._dynamo import OptimizedModule
from torch.jit._script import RecursiveScriptModule
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from planner.errors import UsageError


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside DataParallel, DistributedDataParallel and `torch.compile` wrappers.

    Raises:
        UsageError: a lazy module has not run yet, or the module is TorchScript.
    """
    while isinstance(module, DataParallel | DistributedDataParallel | OptimizedModule):
        module = module._orig_mod if isinstance(module, OptimizedModule) else module.module
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise UsageError(
                f"{name!r} belongs to a lazy module and has no shape yet: run the module once on "
                "the example inputs before the export"
            )
    for name, part in module.named_modules():
        holds = not name or any(True for _ in part.children())
        if isinstance(part, RecursiveScriptModule) and holds:
            raise UsageError(
                f"{repr(name) if name else 'the module'} is TorchScript (torch.jit.script), whose "
                "parameters cannot be replaced by traced ones: give the nn.Module that it was made of"
            )
    return module

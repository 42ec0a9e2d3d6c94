"""Write files so that nothing is ever half-written or lost."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from planner.errors import UsageError


def check_writable(path: Path, *, force: bool) -> None:
    """Raise UsageError where `path` exists (without `force`) or its folder cannot be written."""
    if path.is_dir():
        raise UsageError(f"output {path} is a folder; name a file")
    if path.exists() and not force:
        raise UsageError(f"output {path} exists; pass -f/--force to overwrite it")
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"output folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"output folder {folder} cannot be written")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on failure."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise UsageError(f"output {path} cannot be written: {error.strerror or error}") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def save_model(model: ir.Model, path: Path) -> None:
    """Write `model` atomically; external data stays where it is, by reference.

    Initializers in another folder's data files are re-pointed relative to `path`'s folder where
    ONNX allows it (the files must be below that folder).

    Raises:
        UsageError: external data does not lie below the output's folder.
    """
    folder = path.parent.resolve()
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        data = Path(tensor.path).resolve()
        if not data.is_relative_to(folder):
            raise UsageError(
                f"the external data of {value.name!r} is {data}, which does not lie below {folder}; "
                "write the output beside the original model (-o)"
            )
        value.const_value = ir.ExternalTensor(
            location=str(data.relative_to(folder)),
            offset=tensor.offset,
            length=tensor.length,
            dtype=tensor.dtype,
            shape=tensor.shape,
            name=str(value.name),
            base_dir=folder,
        )
    with atomic_write(path) as temporary:
        ir.save(model, temporary, format="protobuf")

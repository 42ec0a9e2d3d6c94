"""Write files so that nothing is ever half-written or lost, and all files of a command or none."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from planner.errors import UsageError
from planner.files.temporary import NO_ROOM, PLACED, SETTLED, temporary_file


@dataclass(slots=True)
class Together:
    """Files that are renamed into place together at the end: all of them, or none."""

    staged: list[tuple[Path, Path]] = field(default_factory=list)  # (temporary, target)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[Path]:
        """Yield a temporary path beside `path`, to be written there and then; it stays until the end.

        Raises:
            UsageError: the file cannot be written, with the reason.
        """
        with _reasoned(path):
            temporary = self.stack.enter_context(temporary_file(path.parent))
            yield temporary
            _finish(temporary)
        self.staged.append((temporary, path))

    def commit(self) -> None:
        """Rename each into place, the first one last; where one fails, all is as it was.

        Raises:
            UsageError: which one failed, and why.
        """
        several = len(self.staged) > 1
        before = [self._copy_of(path) if several else None for _, path in self.staged]
        with SETTLED:
            done: list[tuple[Path, Path | None]] = []
            try:
                for (temporary, path), old in zip(
                    reversed(self.staged), reversed(before), strict=True
                ):
                    with _reasoned(path):
                        temporary.replace(path)
                    done.append((path, old))
            except BaseException:
                for path, old in reversed(done):
                    if old is None:
                        path.unlink()
                    else:
                        old.replace(path)
                raise
            PLACED.extend(path for _, path in self.staged)

    def _copy_of(self, path: Path) -> Path | None:
        """What is at `path`, under another name; None where nothing is."""
        if not path.exists():
            return None
        with _reasoned(path):
            old = self.stack.enter_context(temporary_file(path.parent))
            shutil.copy2(path, old)
        return old


@contextlib.contextmanager
def written_together() -> Iterator[Together]:
    """Files that are in place only once the block has ended, and only if it did not fail.

    Raises:
        UsageError: a file cannot be written or renamed; none is in place then.
    """
    files = Together()
    with files.stack:
        yield files
        files.commit()


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on failure.

    Raises:
        UsageError: the file cannot be written, with the reason.
    """
    with written_together() as files, files.writing(path) as temporary:
        yield temporary


def _finish(temporary: Path) -> None:
    """Give a written file the usual permissions, and have it on the disk before it gets its name."""
    temporary.chmod(0o666 & ~_umask())
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reasoned(path: Path) -> Iterator[None]:
    """An OSError becomes the user's: which output, why, and what to do where the disk is full."""
    try:
        yield
    except OSError as error:
        advice = "; free some room or name another folder" if error.errno in NO_ROOM else ""
        raise UsageError(
            f"output {path} cannot be written: {error.strerror or error}{advice}"
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_model(model: ir.Model, path: Path) -> None:
    """Write `model`; external data stays where it is, by reference.

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
    ir.save(model, path, format="protobuf")

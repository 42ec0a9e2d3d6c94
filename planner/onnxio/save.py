"""Write files atomically: never half of one, and either all files of a command or none."""

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
    """Files that are renamed into place at the end: all of them, or none."""

    staged: list[tuple[Path, Path]] = field(default_factory=list)  # (temporary, target)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[Path]:
        """Yield a temporary path beside `path`, to be written within the block; it stays until the
        end.

        Raises:
            UsageError: the file cannot be written, with the reason.
        """
        with _reasoned(path):
            temporary = self.stack.enter_context(temporary_file(path.parent))
            yield temporary
            _finish(temporary)
        self.staged.append((temporary, path))

    def commit(self) -> None:
        """Rename each file into place, the first one last; where one fails, restore all.

        Raises:
            UsageError: names the file that failed, and why.
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
        """Copy the file at `path` to another name; return None where there is no file."""
        if not path.exists():
            return None
        with _reasoned(path):
            old = self.stack.enter_context(temporary_file(path.parent))
            shutil.copy2(path, old)
        return old


@contextlib.contextmanager
def written_together() -> Iterator[Together]:
    """Yield a group of files that are put in place when the block ends, unless it fails.

    Raises:
        UsageError: a file cannot be written or renamed; no file of the group is in place then.
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
    """Give a written file the usual permissions, and flush it to the disk before it gets its name."""
    temporary.chmod(0o666 & ~_umask())
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reasoned(path: Path) -> Iterator[None]:
    """Turn an OSError into a UsageError that names the output, the reason, and a remedy for a full
    disk."""
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
    """Write `model`, with external data left in place, by reference.

    References to data files are made relative to `path`'s folder; ONNX requires the files to be below
    that folder.

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

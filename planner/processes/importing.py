"""Import modules ahead of their use, while ONNX Runtime is at work."""

from __future__ import annotations

import threading
from importlib import import_module


def import_ahead(name: str) -> None:
    """Import a module in a thread; a later import waits for it or finds it there.

    A failure is not reported here: the later import raises it again.
    """
    threading.Thread(target=_imported, args=(name,), daemon=True).start()


def import_there(_: None, name: str) -> None:
    """Import a module in another process, as a call of `Beside.begin`."""
    _imported(name)


def _imported(name: str) -> None:
    try:
        import_module(name)
    except Exception:
        return  # raised again for those who need it

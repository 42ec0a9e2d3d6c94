"""Modules that are needed later, imported while ONNX Runtime is at work."""

from __future__ import annotations

import threading
from importlib import import_module


def import_ahead(name: str) -> None:
    """Have a module imported in a thread; who imports it then waits for that, or finds it there. Where it
    cannot be imported, they are told."""
    threading.Thread(target=_imported, args=(name,), daemon=True).start()


def import_there(_: None, name: str) -> None:
    """Import a module, as a call to another process."""
    _imported(name)


def _imported(name: str) -> None:
    try:
        import_module(name)
    except Exception:
        return  # raised again for those who need it

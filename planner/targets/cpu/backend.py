"""The backend of the host's processor, whose provider every wheel has."""

from __future__ import annotations

from planner.targets.backend import Backend

BACKEND = Backend

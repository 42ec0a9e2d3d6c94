"""How the host's processor runs: with the provider that every wheel has."""

from __future__ import annotations

from planner.targets.backend import Backend

BACKEND = Backend

"""Stages before planning: load, optimize, size and cost the model; turn the request into settings."""

"""Programs that measure what the project withstands, and what they wrote."""

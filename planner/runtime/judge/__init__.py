"""Both models run: numbers, order, bytes, a hard cap."""

"""The lever that keeps inputs and outputs on the host."""

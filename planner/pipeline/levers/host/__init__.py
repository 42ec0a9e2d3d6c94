"""The lever that keeps parameters, state, inputs and outputs on the host."""

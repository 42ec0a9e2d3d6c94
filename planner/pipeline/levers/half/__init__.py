"""The lever that stores saved tensors in half precision."""

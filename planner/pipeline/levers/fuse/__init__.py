"""The lever that fuses element operations."""

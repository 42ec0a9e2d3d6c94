"""The lever that runs large operations in chunks of rows."""

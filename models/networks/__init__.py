"""Networks that people train, at small sizes: from packages, and written by hand (`catalogue`)."""

"""What may be done beside order, recompute and swap, and which of it a plan takes."""

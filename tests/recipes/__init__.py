"""Training as people write it: each recipe exported, checked, planned and verified."""

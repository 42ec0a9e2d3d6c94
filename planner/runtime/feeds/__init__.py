"""Inputs of a run: the user's, those of a sidecar beside the model, or random ones."""

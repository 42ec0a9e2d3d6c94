"""Inputs of a run: given, described beside the model, or drawn."""

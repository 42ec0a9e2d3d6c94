"""From a plan to a rewritten model."""

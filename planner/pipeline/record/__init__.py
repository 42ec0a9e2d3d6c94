"""Records of a plan: the plan file, its decisions, its part in reports, and the way back."""

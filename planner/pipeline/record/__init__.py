"""What is kept of a plan: the plan file, its decisions, what is shown of it, and the way back."""

"""Base orders, solving, lowering and reading back, until a plan is accepted."""

"""Find base orders, solve, lower and read back, until a plan is accepted."""

"""`planner run`: run an unchanged script whose sessions get what their plans need."""

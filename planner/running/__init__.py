"""`planner run`: a script that is not changed, whose sessions get what their plans need."""

"""The published methods, written anew from their papers on OR-tools; plans replayed by planner."""

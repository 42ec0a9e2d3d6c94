"""The portfolio: which engine works on a problem, in which order, and for how long."""

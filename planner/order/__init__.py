"""Base orders: a better order lowers the peak at no cost in time."""

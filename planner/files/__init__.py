"""Files that others wrote, and files that planner writes."""

"""What the literature on low-memory training published, and what planner finds for the same networks."""

"""Base orders: order alone is free memory."""

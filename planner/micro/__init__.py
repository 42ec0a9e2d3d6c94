"""A step on a batch as several runs on parts of it, whose gradients add up."""

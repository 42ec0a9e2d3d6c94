"""Micro-batches: a step as several runs on parts of the batch, whose gradients are added up."""

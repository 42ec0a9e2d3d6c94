"""The graph that a target runs, and its placement: blocked layouts, devices, one file for all."""

"""Lower bounds for every plan: the LP over instants, and its minimum cuts."""

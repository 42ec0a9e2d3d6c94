"""Lower bounds for every plan: the LP over instants, its minimum cuts, the interval program."""

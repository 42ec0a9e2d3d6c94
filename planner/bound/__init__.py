"""What no plan can go below: the LP over instants, its minimum cuts, the interval program."""

"""Plans from linear programs: solve, round, cut, price."""

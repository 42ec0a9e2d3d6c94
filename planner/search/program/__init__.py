"""Plans from linear and integer programs: solve, round, cut, price."""

"""Plans from linear and integer programs: solved, rounded, cut, priced."""

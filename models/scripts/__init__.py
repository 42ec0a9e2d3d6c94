"""Small, ordinary training scripts. None knows what was done to the model that it trains."""

"""Small, ordinary training scripts. None depends on changes that were made to its model."""

"""Networks of the sizes that people train, planned on shapes alone: see `reports.sizes.__main__`."""

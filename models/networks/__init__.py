"""Networks that people train, built small: of packages and as people write them by hand (`catalogue`)."""

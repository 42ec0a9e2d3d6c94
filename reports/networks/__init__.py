"""Networks that people train, exported, checked against autograd, planned and verified."""

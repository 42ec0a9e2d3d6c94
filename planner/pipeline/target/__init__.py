"""Which graph a target runs, and where: blocked layouts, devices, one file for all of them."""

"""The pipeline: request, prepare, formulate, solve, lower, read back, verify, report.

`planner.api` fills the request in; `optimizing` runs these stages in this order.
"""

"""The line: request, prepare, formulate, solve, lower, read back, verify, report.

`planner.api` fills the request; `optimizing` reads as the line does.
"""

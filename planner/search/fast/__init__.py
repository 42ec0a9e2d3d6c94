"""The compiled inner loop of the search: execute decisions, replay, improve.

arrays      a problem and its decisions as flat arrays
core        `planner/native/search` on these arrays, thousands of replays a second
"""

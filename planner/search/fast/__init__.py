"""The search's inner loop, which is compiled: execute decisions, replay, improve.

arrays      a problem and its decisions as flat arrays
core        what `planner/native/search` does with them, thousands of replays a second
"""

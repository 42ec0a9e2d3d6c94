"""The search's inner loop, compiled: execute decisions, replay, improve. The simulator stays the judge.

arrays      a problem and its decisions as flat arrays
schedule    decisions -> actions
replay      actions -> live bytes and time (copies and operations on one stream)
streams     the same with copies beside the operations, listed where they hide
moves       change decisions, thousands of replays a second
"""

"""Fusion: groups of element operations become one node each, which runs a program over blocks.

operators   which ONNX operators, as which operations of a program, and how close
groups      which of a graph's operations go together
again       which values the readers of a group work out again, so that nobody stores them
program     a group as a program, whose text docs/native.md describes
rewrite     a clone of the model with a node in place of each group
"""

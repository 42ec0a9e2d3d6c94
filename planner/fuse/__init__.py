"""Fusion: each group of element operations becomes one node, which runs a program over blocks.

operators   ONNX operators as operations of a program, and which of them keep all bits
groups      groups of operations that run together
again       values that the readers of a group recompute, and that are therefore not stored
program     a group as a program, whose text docs/native.md describes
convolutions  convolutions with few filters a group, which have an operator of their own
rewrite     a clone of the model with a node in place of each group
"""

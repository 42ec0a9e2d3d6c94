"""The operator table: one row for each operator, which all rooms read.

`row.py` says what a row has. To teach planner an operator, write its row in the module of its domain
(`standard.py` for ONNX's own, `contrib.py` and `training.py` for com.microsoft, `others.py`); where none
of the rules is right, add one to the room that applies it. `tests/graph/test_operators.py` walks the
schemas that onnx and ONNX Runtime have, so that no operator of a later version is forgotten.
"""

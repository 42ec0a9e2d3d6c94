"""The operator table: one row per operator, read by all other packages.

`row.py` defines the columns. To teach planner an operator, add its row to the module of its domain
(`standard.py` for ONNX's own, `contrib.py` and `training.py` for com.microsoft, `others.py`); if
none of the rules fits, add a rule to the package that applies it. `tests/graph/test_operators.py`
walks the schemas of onnx and ONNX Runtime and finds operators of later versions that the table
lacks.
"""

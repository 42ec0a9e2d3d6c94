"""The base of planning: problem, decisions, plan, and their files. Imports no solver."""

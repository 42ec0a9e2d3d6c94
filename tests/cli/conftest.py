"""The hand-built results of the report's tests serve the command line's too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

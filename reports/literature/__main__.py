"""The literature's figures beside planner's: `python -m reports.literature`, about five minutes.

Rows go to `reports/literature.json`, each part as it is measured; `reports/literature.md` is written from
them. Everything here is by plan: nothing but PyTorch's forward pass is run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from reports.literature import sohoni, tflms
from reports.literature.page import markdown

FOLDER = Path(__file__).parents[1]
RESULT, PAGE = FOLDER / "literature.json", FOLDER / "literature.md"


def main() -> int:
    """Measure all parts and write both files."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (
            ("sohoni", sohoni.figures),
            ("translator", sohoni.translator),
            ("tflms", tflms.rows),
        ):
            found[name] = part(Path(folder))
            RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    # as a reader of the file has it
    PAGE.write_text(markdown(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

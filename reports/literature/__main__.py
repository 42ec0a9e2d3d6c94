"""The literature's figures beside planner's: `python -m reports.literature [PART...]`, half an hour.

Parts are `sohoni`, `translator` and `tflms`; all of them where none is named. Rows go to
`reports/literature.json`, each part as it is measured; `reports/literature.md` is written from them.
Everything here is by plan: nothing but PyTorch's forward pass is run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from reports.literature import sohoni, tflms
from reports.literature.page import markdown

FOLDER = Path(__file__).parents[1]
RESULT, PAGE = FOLDER / "literature.json", FOLDER / "literature.md"
PARTS = {"sohoni": sohoni.figures, "translator": sohoni.translator, "tflms": tflms.rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is named and write both files."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="reports.literature", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    wanted = parser.parse_args(arguments).parts or list(PARTS)
    found = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            found[name] = PARTS[name](Path(folder))
            RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    # as a reader of the file has it
    PAGE.write_text(markdown(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

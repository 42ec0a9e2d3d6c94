"""The literature's figures beside planner's: `python -m reports.literature [PART...]`, half an hour.

Parts are `sohoni`, `translator` and `tflms`; all of them where none is named. Rows go to
`reports/literature.json`, each part as it is measured; `reports/literature.md` is written from them.
Everything here is by plan: nothing but PyTorch's forward pass is run.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from reports.literature import sohoni, tflms
from reports.literature.page import markdown
from reports.shared import FOLDER, program, read_rows, write_rows

RESULT, PAGE = FOLDER / "literature.json", FOLDER / "literature.md"
PARTS = {"sohoni": sohoni.figures, "translator": sohoni.translator, "tflms": tflms.rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the named networks, and write both files."""
    parser = program("reports.literature", __doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    wanted = parser.parse_args(arguments).parts or list(PARTS)
    found = read_rows(RESULT, {})
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            found[name] = PARTS[name](Path(folder))
            write_rows(RESULT, found)
    # as a reader of the file has it
    PAGE.write_text(markdown(read_rows(RESULT, {})), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

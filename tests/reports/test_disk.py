"""`reports.disk --beyond`: a step whose swaps are larger than the memory of a (small) machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.disk import kind_of
from reports import disk
from reports.shared import MIB, read_rows


def test_a_step_that_no_memory_holds_is_right_and_the_page_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "proc_bytes", lambda *_: 12 * MIB)
    row = disk.beyond(24 * MIB, tmp_path, tensor_mib=1)
    assert row["wrong"] == 0 and row["file_bytes"] > row["memory_bytes"] == 12 * MIB
    assert row["peak_bytes"] <= 8 * MIB and row["moved_bytes"] == 2 * row["file_bytes"]
    assert row["cached_bytes"] == 0 or kind_of(tmp_path) != "direct"
    page = disk.page(read_rows(disk.RESULT, {}) | {disk.BEYOND: row})
    assert page.startswith(disk.PAGE.read_text().partition("\n## ")[0])
    assert "on a machine\nwith 12.00 MiB of memory" in page and "\n0 elements" not in page


def test_where_memory_would_hold_it_or_the_disk_would_not_it_says_so(tmp_path: Path) -> None:
    for size in (8 * MIB, 1 << 60):
        assert "free, for swaps of" in disk.beyond(size, tmp_path)["why"]
    rows = read_rows(disk.RESULT, {}) | {disk.BEYOND: disk.beyond(8 * MIB, tmp_path)}
    assert "Not measured: memory of " in disk.page(rows)

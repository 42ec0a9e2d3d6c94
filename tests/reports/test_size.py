"""The size report counts what it says."""

from __future__ import annotations

from reports.size import size_of


def test_counts_of_two_small_files():
    long = "def f(a, b, c, d, e, f, *, g):\n" + "    x = 1\n" * 60
    short = (
        "_A = 1\n_B, C = 2, 3\nD = 4\n\n\n"
        "class K:\n    def m(self, a, b, c, d, e, f):\n        pass\n"
    )
    size = size_of({"planner/plan/a.py": long, "planner/plan/b.py": short})
    assert (size.files, size.most_files_in_a_folder, size.lines) == (2, 2, 69)
    assert (size.long_functions, size.wide_functions, size.private_constants) == (1, 1, 2)

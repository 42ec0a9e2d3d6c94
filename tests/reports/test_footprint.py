"""What is made of the packages that an environment has."""

from __future__ import annotations

from typing import Any

from reports.footprint import packages_of, page


def row(name: str, megabytes: float, *requires: str) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1.0",
        "requires": list(requires),
        "bytes": int(megabytes * 1e6),
        "compiled": int(megabytes * 1e5),
    }


FOUND = [
    row("onnx-planner", 2.0, "Jinja2>=3.1", "ml_dtypes"),
    row("Jinja2", 0.5, 'MarkupSafe>=2.0 ; python_version > "3"'),
    row("MarkupSafe", 0.1),
    row("ml-dtypes", 30.0),
    row("pip", 9.0),
]


def test_who_asks_for_a_package_whatever_the_spelling_of_its_name():
    packages = {p.name: p for p in packages_of(FOUND)}
    assert list(packages) == ["ml-dtypes", "onnx-planner", "Jinja2", "MarkupSafe"]
    assert packages["ml-dtypes"].needed_by == ("onnx-planner",)
    assert packages["MarkupSafe"].needed_by == ("Jinja2",)
    assert packages["onnx-planner"].needed_by == ()
    assert (packages["Jinja2"].mb, packages["Jinja2"].compiled_mb) == (0.5, 0.05)


def test_small_packages_are_one_row_and_counted():
    text = page(packages_of(FOUND), "cpu", {"x": 0.5}, [])
    assert "4 packages, 33 MB, and 3 MB compiled." in text
    assert "| 2 others | | 0.6 | 0.1 | |" in text and "| `x` | 0.50 |" in text
    assert "loads none of" in text

"""The plan file as a JSON Schema, made from its dataclasses by msgspec.

`python -m planner.plan.planschema` prints it; `plan.schema.json` beside this file is that text.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from msgspec.json import schema_components

from planner.plan.planfile import PLAN_VERSION, Plan


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a plan file.

    The schema allows unknown fields: a later release may add some within the same version.
    """
    _, parts = schema_components([Plan], ref_template="#/$defs/{name}")
    for part in parts.values():  # formatted as in Python 3.13, without the attributes
        words = inspect.cleandoc(part["description"]).split("\n\n")[0]
        part["description"] = words.replace("\n", " ")
        for name, field in part.get("properties", {}).items():
            if name not in part.get("required", ()) and field.get("type") == "object":
                field.setdefault("default", {})  # which msgspec leaves out before 0.23
    top = parts.pop("Plan")
    top["properties"]["version"] = {"const": PLAN_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "title": f"planner plan, version {PLAN_VERSION}",
        "required": ["version", *top["required"]],
        "$defs": dict(sorted(parts.items())),
    }


def schema_text() -> str:
    """Return the text of `plan.schema.json`."""
    return json.dumps(plan_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")

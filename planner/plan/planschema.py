"""The plan file as a JSON Schema, made from its dataclasses.

`python -m planner.plan.planschema` prints it; `plan.schema.json` beside this file is that text.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from planner.plan.planfile import PLAN_VERSION, Plan
from planner.plan.problem import ActionKind

_PLAIN: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def plan_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a plan file. Fields that it does not know are allowed: a later
    release may add some within the same version."""
    definitions: dict[str, Any] = {}
    top = _object(Plan, definitions)
    top["properties"]["version"] = {"const": PLAN_VERSION}
    top["required"] = ["version", *top["required"]]
    definitions["PlannedAction"]["properties"]["kind"] = {"enum": [str(k) for k in ActionKind]}
    for name in ("Decision", "Barred"):
        definitions[name]["properties"]["action"] = {"enum": ["recompute", "swap"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"planner plan, version {PLAN_VERSION}",
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {
        "type": "object",
        "description": (cls.__doc__ or "").split("\n\n")[0].replace("\n   ", ""),
        "properties": {f.name: _schema(hints[f.name], definitions) for f in fields(cls)},
        "required": [
            f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING
        ],
    }


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one type; dataclasses go to `definitions`.

    Raises:
        TypeError: a type that plan files have no use for so far.
    """
    arguments = typing.get_args(hint)
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if is_dataclass(hint):
        assert isinstance(hint, type)
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return {"anyOf": [_schema(a, definitions) for a in arguments]}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is tuple:
        each = [_schema(a, definitions) for a in arguments]
        return {"type": "array", "prefixItems": each, "items": False, "minItems": len(each)}
    raise TypeError(f"a plan file cannot hold {hint}")


def schema_text() -> str:
    """The text of `plan.schema.json`."""
    return json.dumps(plan_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")

"""From JSON as it was read to frozen dataclasses, with nothing turned into the type that is wanted."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, get_origin, get_type_hints

import cattrs
from cattrs.gen import make_dict_structure_fn

from planner.errors import ModelError, PlannerError
from planner.reading import shown

T = TypeVar("T")


def structured(
    data: Any,
    kind: type[T],
    *,
    where: str,
    what: str,
    error: type[PlannerError] = ModelError,
    path: str = "file",
    only_known_keys: bool = True,
) -> T:
    """`data`, as JSON gives it, as a dataclass of type `kind`.

    Nothing is turned into the wanted type: not a text of digits into a number, not true into 1, not
    1.5 into 1, not a text into a list of its letters.

    Args:
        where, what, error: as for `parse_json`; path: what the document is called there.
        only_known_keys: refuse keys that no field has.

    Raises:
        error: with the first thing that is wrong, and where in the document.
    """
    try:
        return _converter(only_known_keys).structure(data, kind)
    except RecursionError:
        raise error(f"{where} is not {what}: it is nested too deep") from None
    except Exception as reason:
        found = cattrs.transform_error(reason, path=path, format_exception=_what)
        raise error(f"{where} is not {what}: {found[0]}") from None


@functools.cache
def _converter(only_known_keys: bool) -> cattrs.Converter:
    converter = cattrs.Converter()
    for kind, wanted in ((int, "a whole number"), (str, "a text"), (bool, "true or false")):
        converter.register_structure_hook(kind, partial(_exactly, kind, wanted))
    converter.register_structure_hook(float, _number)

    def make(kind: type) -> Callable[[Any, Any], Any]:
        make_it = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=only_known_keys)
        return partial(_of_object, make_it, _containers(kind))

    converter.register_structure_hook_factory(dataclasses.is_dataclass, make)
    return converter


def _containers(kind: type) -> dict[str, type]:
    """The fields of a dataclass that are a list or an object in JSON."""
    wanted = {tuple: list, dict: dict}
    hints = get_type_hints(kind).items()
    return {name: wanted[get_origin(hint)] for name, hint in hints if get_origin(hint) in wanted}


def _of_object(
    make: Callable[[Any, Any], Any], containers: Mapping[str, type], value: Any, kind: type
) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{shown(value)} is not an object")
    for key in sorted(containers.keys() & value.keys()):
        if not isinstance(value[key], containers[key]):
            wanted = "a list" if containers[key] is list else "an object"
            raise TypeError(f"{key} is {shown(value[key])}, not {wanted}")
    return make(value, kind)


def _exactly(kind: type, wanted: str, value: Any, _: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{shown(value)} is not {wanted}")
    return value


def _number(value: Any, _: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{shown(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise TypeError(f"{shown(value)} is not a finite number")
    return number


def _what(error: BaseException, _type: type | None) -> str:
    if isinstance(error, KeyError):
        return f"the key {shown(error.args[0])} is missing"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"unknown key {shown(min(error.extra_fields))}"
    return str(error)

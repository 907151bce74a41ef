"""JSON Schema, as far as our schemas use it."""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias  # Any: JSON documents

Schema: TypeAlias = dict[str, Any]


def complaints(value: object, schema: Schema, root: Schema | None = None, where: str = "") -> list[str]:
    """Return what JSON Schema has against a value; of the words that our schemas use. Definitions are in `root`."""
    unknown = set(schema) - {*_CHECKS, "description", "default", "title", "$schema", "$defs", "properties"}
    assert not unknown, unknown
    checks = [check for word, check in _CHECKS.items() if word in schema]
    return [complaint for check in checks for complaint in check(value, schema, root or schema, where)]


def _ref(value: object, schema: Schema, root: Schema, where: str) -> list[str]:
    return complaints(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, where)


def _type(value: object, schema: Schema, root: Schema, where: str) -> list[str]:
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    kinds["number"] = (int, float)
    fits = isinstance(value, kinds[schema["type"]]) and (schema["type"] == "boolean" or not isinstance(value, bool))
    return [] if fits else [f"{where}: no {schema['type']}"]


def _any_of(value: object, schema: Schema, root: Schema, where: str) -> list[str]:
    found = [complaints(value, form, root, where) for form in schema["anyOf"]]
    return [] if [] in found else [f"{where}: none of {len(found)} forms"]


def _properties(value: object, schema: Schema, root: Schema, where: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    rest = schema["additionalProperties"]
    found = []
    for key, item in value.items():
        form = schema.get("properties", {}).get(key, rest)
        found += [f"{where}.{key}: unknown"] if form is False else complaints(item, form, root, f"{where}.{key}")
    return found


def _items(value: object, schema: Schema, root: Schema, where: str) -> list[str]:
    items = value if isinstance(value, list) else []
    return [
        text
        for index, item in enumerate(items)
        for text in complaints(item, schema["items"], root, f"{where}[{index}]")
    ]


def _bound(holds: Any, kind: Any) -> Any:
    def check(value: object, schema: Schema, root: Schema, where: str) -> list[str]:
        if not isinstance(value, kind) or isinstance(value, bool):
            return []
        return [] if holds(value, schema) else [f"{where}: out of bounds"]

    return check


_CHECKS: dict[str, Any] = {
    "$ref": _ref,
    "type": _type,
    "anyOf": _any_of,
    "enum": lambda value, schema, _root, where: [] if value in schema["enum"] else [f"{where}: none of the words"],
    "additionalProperties": _properties,
    "propertyNames": lambda value, schema, root, where: [
        text
        for key in (value if isinstance(value, dict) else ())
        for text in complaints(key, schema["propertyNames"], root, f"{where}.{key}")
    ],
    "items": _items,
    "required": _bound(lambda value, schema: set(schema["required"]) <= set(value), dict),
    "minProperties": _bound(lambda value, schema: len(value) >= schema["minProperties"], dict),
    "maxProperties": _bound(lambda value, schema: len(value) <= schema["maxProperties"], dict),
    "maxItems": _bound(lambda value, schema: len(value) <= schema["maxItems"], list),
    "minItems": _bound(lambda value, schema: len(value) >= schema["minItems"], list),
    "uniqueItems": _bound(lambda value, schema: len({json.dumps(it) for it in value}) == len(value), list),
    "minimum": _bound(lambda value, schema: value >= schema["minimum"], (int, float)),
    "maximum": _bound(lambda value, schema: value <= schema["maximum"], (int, float)),
    "pattern": _bound(lambda value, schema: re.search(schema["pattern"], value) is not None, str),
}

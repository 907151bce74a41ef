"""Keys that people write, as declarations: pools, rules and requests are tables of them.

A Form is how a value is read, together with the JSON Schema of what is read; a Key is a Form under a name. The typed
reading, the schemas (api/*.schema.json) and the tables of the pages (docs/key_tables.py) follow the declarations.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, TypeAlias  # Any: fields of the value that a table becomes

from nri_rdma.errors import RequestError
from nri_rdma.text.reading import Fields, Reader, UnknownKey, boolean, list_of, matching, one_of, whole, word_or
from nri_rdma.text.refusals import each_of, refuse_all, refused, unknown_key
from nri_rdma.text.yaml import Node

Schema: TypeAlias = Mapping[str, object]

DRAFT = "https://json-schema.org/draft/2020-12/schema"


class StandsIn(StrEnum):
    """The place in which a request is written."""

    POD = "pod"
    """The pod's annotation."""
    CONTAINER = "container"
    """The annotation for one container."""
    CDI = "CDI spec"
    CLAIM = "claim"
    """The parameters of a claim."""


@dataclass(frozen=True, slots=True)
class Form:
    """The reader of a value, and its JSON Schema.

    `keys` are those of a mapping, and `fills` is the dataclass whose fields they fill. `read` is for one device;
    `read_for` returns the reader for another number of devices (None: unknown, or all) where that differs.
    """

    read: Reader[Any]
    schema: Schema
    keys: tuple[Key, ...] = ()
    fills: type[Any] | None = None
    read_for: Callable[[int | None], Reader[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table: the field that it fills, its form, and what it means.

    `default` says in words what holds without the key; "" where the field's own default says it. `refused_in` has the
    places where a request may not have the key, each with the hint of the refusal (``{key}`` is the name).
    """

    name: str
    field: str
    form: Form
    text: str
    default: str = ""
    unit: str = ""
    refused_in: Mapping[StandsIn, str] = dataclasses.field(default_factory=dict)


def names_of(keys: tuple[Key, ...]) -> tuple[str, ...]:
    """Return the names of the keys."""
    return tuple(key.name for key in keys)


# Reading


def read_keys(
    node: Node, where: str, keys: tuple[Key, ...], count: int | None = 1, unknown: UnknownKey = unknown_key
) -> dict[str, Any]:
    """Return the fields that a mapping with these keys fills. Raises RequestError, with all that is wrong in it."""
    errors: list[RequestError] = []
    found = given(Fields(node, where, names_of(keys), unknown, errors), keys, count, errors)
    refuse_all(errors)
    return found


def given(
    written: Fields, keys: tuple[Key, ...], count: int | None = 1, errors: list[RequestError] | None = None
) -> dict[str, Any]:
    """Return the fields that those of the keys fill that are written, read in the order of the keys. What is wrong is
    raised together, or goes to `errors`."""
    found: dict[str, Any] = {}
    wrong: list[RequestError] = []
    for key in keys:
        if key.name in written.node:
            form = key.form
            read = form.read if count == 1 or form.read_for is None else form.read_for(count)
            try:
                found[key.field] = read(written.node[key.name], f"{written.where}.{key.name}")
            except RequestError as error:
                wrong += each_of(error)
    if errors is None:
        refuse_all(wrong)
    else:
        errors += wrong
    return found


# Schemas


def schema_of(keys: tuple[Key, ...], fills: type[Any] | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a mapping with these keys, with the defaults of the dataclass that they fill."""
    return {
        "type": "object",
        "properties": {key.name: _described(key, fills) for key in keys},
        "additionalProperties": False,
    }


def _described(key: Key, fills: type[Any] | None) -> dict[str, object]:
    default = default_of(key, fills)
    return {
        "description": f"{key.text} ({key.unit})" if key.unit else key.text,
        **key.form.schema,
        **({} if default is None else {"default": default}),
    }


def default_of(key: Key, fills: type[Any] | None) -> str | int | list[str] | None:
    """Return the default of the field that a key fills as people write it; None when that has no such form."""
    default = next((item.default for item in fields(fills) if item.name == key.field), MISSING) if fills else MISSING
    match default:
        case StrEnum():
            return str(default)
        case bool() | int() | str():
            return default
        case frozenset():
            (kind,) = {type(member) for member in default}
            return [str(member) for member in kind if member in default]
    return None


# Forms


def table(fills: type[Any], keys: tuple[Key, ...], unknown: UnknownKey = unknown_key) -> Form:
    """Make the form of a mapping with these keys, which becomes a value of that dataclass."""

    def read_for(count: int | None) -> Reader[Any]:
        return lambda node, where: fills(**read_keys(node, where, keys, count, unknown))

    return Form(read_for(1), schema_of(keys, fills), keys, fills, read_for)


def text_of(pattern: re.Pattern[str], hint: str) -> Form:
    """Make the form of a text that the pattern matches as a whole."""
    return Form(matching(pattern, hint), pattern_schema(pattern))


def word_of(kind: type[StrEnum]) -> Form:
    """Make the form of a member by its value."""
    return Form(one_of(kind), {"enum": [str(member) for member in kind]})


def number(low: int, high: int, *, hint: str = "") -> Form:
    """Make the form of a whole number between two bounds, both included."""
    return Form(whole(low, high, hint=hint), {"type": "integer", "minimum": low, "maximum": high})


def number_or(special: Mapping[str, object], numbers: Form) -> Form:
    """Make the form of a word that has its own meaning, or a number."""
    read = numbers.read
    for word, meaning in special.items():
        read = word_or(word, meaning, read)
    return Form(read, {"anyOf": [{"enum": [*special]}, numbers.schema]})


FLAG = Form(boolean, {"type": "boolean"})


def some(form: Form) -> Form:
    """Make the form of a list with at least one value."""
    return Form(list_of(form.read), list_schema(form.schema))


def up_to(most: int, form: Form) -> Form:
    """Make the form of a list with at least one value and at most so many; `form` is that of one."""
    read_list = list_of(form.read)

    def read(node: Node, where: str) -> tuple[object, ...]:
        if isinstance(node, list) and len(node) > most:
            raise refused(where, f"there are {len(node)} entries in it", f"write at most {most}")
        return read_list(node, where)

    return Form(read, {**list_schema(form.schema), "maxItems": most}, form.keys, form.fills)


def some_of(kind: type[StrEnum]) -> Form:
    """Make the form of a list with at least one member, which becomes a set."""
    read = list_of(one_of(kind))
    return Form(lambda node, where: frozenset(read(node, where)), list_schema(word_of(kind).schema))


def one_or_more(form: Form) -> Form:
    """Make the form of a value, or of a list of them: any of these."""
    several = list_of(form.read)

    def read(node: Node, where: str) -> tuple[object, ...]:
        return several(node, where) if isinstance(node, list) else (form.read(node, where),)

    return Form(read, {"anyOf": [form.schema, list_schema(form.schema)]})


def any_of(form: Form) -> Form:
    """Make the form of a list that may be empty, for what may be nothing; it becomes a set."""
    several = list_of(form.read)

    def read(node: Node, where: str) -> frozenset[object]:
        return frozenset() if node == [] else frozenset(several(node, where))

    return Form(read, {"type": "array", "items": form.schema, "uniqueItems": True})


def list_schema(items: Schema) -> Schema:
    """Return the JSON Schema of a list with at least one value and none twice."""
    return {"type": "array", "items": items, "minItems": 1, "uniqueItems": True}


def pattern_schema(pattern: re.Pattern[str]) -> Schema:
    """Return the JSON Schema of a text that the pattern matches as a whole."""
    return {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}

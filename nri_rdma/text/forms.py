"""Declares the keys of requests, pools, rules and CDI specs, each as a Key in a table.

A Form is a function that reads a value, together with the JSON Schema of the values that it accepts. A Key is a Form
with a name and a description. Reading, the schemas (api/*.schema.json) and the tables in the documentation
(docs/key_tables.py) are derived from the Keys.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, TypeAlias  # Any: fields of the value that a table becomes

from nri_rdma.errors import RequestError
from nri_rdma.text.nodes import Node, is_missing, line_of
from nri_rdma.text.reading import (
    OF_REQUESTS,
    MappingErrors,
    Reader,
    boolean,
    list_of,
    mapping,
    matching,
    one_of,
    parsed,
    whole,
    word_or,
)
from nri_rdma.text.refusals import Errors, refuse_all, refused

Schema: TypeAlias = Mapping[str, object]

TEXT_SCHEMA: Schema = {"type": "string"}
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
    """A function that reads a value (`read`), with the JSON Schema of the values that it accepts.

    If the value is a mapping, `keys` are its keys, and `fills` is the dataclass that is made from it. `read_for` is set
    if the value depends on a number of devices: it returns the function for that number (None: unknown, or all). `read`
    is then the function for one device.
    """

    read: Reader[Any]
    schema: Schema = dataclasses.field(default_factory=dict)
    keys: tuple[Key, ...] = ()
    fills: type[Any] | None = None
    read_for: Callable[[int | None], Reader[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key that people write in a mapping, such as `mtu`, with the Form (reader and JSON Schema) of its value and its
    documentation.

    `field` is the dataclass field that gets the value. `default` says in words what applies if the key is left out; if
    it is "", the documentation shows the field's default value. `required` is the hint of the error for a mapping
    without the key; "" if the key may be left out. `refused_in` has the places where a request must not have the key,
    each with the hint of the error (``{key}`` in a hint stands for the name).
    """

    name: str
    field: str
    form: Form
    text: str = ""
    default: str = ""
    required: str = ""
    unit: str = ""
    refused_in: Mapping[StandsIn, str] = dataclasses.field(default_factory=dict)


def names_of(keys: tuple[Key, ...]) -> tuple[str, ...]:
    """Return the names of the keys."""
    return tuple(key.name for key in keys)


# Reading


def read_keys(
    node: Node, where: str, keys: tuple[Key, ...], count: int | None = 1, wording: MappingErrors = OF_REQUESTS
) -> dict[str, Any]:
    """Read a mapping with these keys, and return the value of each key that is written, by the name of its dataclass
    field. `count` is the number of devices that the values are for (None: unknown, or all). Raises one RequestError
    that has all errors in the mapping; `wording` makes the errors for wrong keys."""
    errors = Errors(most=wording.most)
    found = given(mapping(node, where, names_of(keys), errors, wording), where, keys, errors, count)
    errors.refuse()
    return found


def given(
    written: Mapping[str, Node], where: str, keys: tuple[Key, ...], errors: Errors, count: int | None = 1
) -> dict[str, Any]:
    """Read the values of these keys in a mapping, and return each by the name of its dataclass field; keys that are not
    written are skipped. `count` is the number of devices that the values are for (None: unknown, or all). Errors are
    added to `errors`, also one for each missing key that is required."""
    found: dict[str, Any] = {}
    for key in keys:
        node = written.get(key.name)
        if node is None or is_missing(node):
            if key.required:
                missing = refused(where, f"{key.name} is missing", key.required, key.name)
                errors.add(missing, line_of(written, key.name))
            continue
        read = key.form.read if count == 1 or key.form.read_for is None else key.form.read_for(count)
        try:
            found[key.field] = read(node, f"{where}.{key.name}")
        except RequestError as error:
            errors.add(error, line_of(node, error.key or None))
    return found


# Schemas


def schema_of(keys: tuple[Key, ...], fills: type[Any] | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a mapping with these keys. It shows the default values of the dataclass `fills`; None:
    it shows none."""
    return {
        "type": "object",
        "properties": {key.name: _described(key, fills) for key in keys},
        "additionalProperties": False,
        **({"required": needed} if (needed := [key.name for key in keys if key.required]) else {}),
    }


def _described(key: Key, fills: type[Any] | None) -> dict[str, object]:
    default = default_of(key, fills)
    return {
        "description": f"{key.text} ({key.unit})" if key.unit else key.text,
        **key.form.schema,
        **({} if default is None else {"default": default}),
    }


def default_of(key: Key, fills: type[Any] | None) -> str | int | list[str] | None:
    """Return the default value of a key's dataclass field, in the form in which people write it. Returns None if there
    is no default value, or if people cannot write it (such as an empty tuple)."""
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


Misfits: TypeAlias = Callable[[Mapping[str, Any], str], Iterable[RequestError]]
"""A function that returns the errors for contradictions between the values of a mapping. Its arguments are the values
by field name, and the mapping's place in the text."""


def table(
    fills: type[Any], keys: tuple[Key, ...], wording: MappingErrors = OF_REQUESTS, misfits: Misfits | None = None
) -> Form:
    """Return a Form (reader and JSON Schema) for a mapping with these keys, which is read into an object of the
    dataclass `fills`. `wording` makes the errors for wrong keys. `misfits` returns the errors for contradictions
    between the values."""

    def read_for(count: int | None) -> Reader[Any]:
        def read(node: Node, where: str) -> object:
            found = read_keys(node, where, keys, count, wording)
            refuse_all(misfits(found, where) if misfits else ())
            return fills(**found)

        return read

    return Form(read_for(1), schema_of(keys, fills), keys, fills, read_for)


def text_of(pattern: re.Pattern[str], hint: str, text: Reader[str] | None = None) -> Form:
    """Return a Form (reader and JSON Schema) for a text that the pattern matches as a whole. Other texts are refused
    with `hint`. `text` reads the text from the parsed value; None: the parsed value must be a string."""
    return Form(matching(pattern, hint, text), pattern_schema(pattern))


def parsed_by(
    parse: Callable[[str], object], hint: str, schema: Schema = TEXT_SCHEMA, text: Reader[str] | None = None
) -> Form:
    """Return a Form (reader and JSON Schema) for a text that `parse` turns into a value. The text is refused with
    `hint` if `parse` returns None or raises ValueError. `text` reads the text from the parsed value; None: the parsed
    value must be a string."""
    return Form(parsed(parse, hint, text), schema)


def word_of(kind: type[StrEnum], text: Reader[str] | None = None) -> Form:
    """Return a Form (reader and JSON Schema) for a word that is the value of a member of the enum `kind`. `text` reads
    the word from the parsed value; None: the parsed value must be a string."""
    return Form(one_of(kind, text), {"enum": [str(member) for member in kind]})


def number(low: int, high: int, *, hint: str = "") -> Form:
    """Return a Form (reader and JSON Schema) for a whole number from `low` to `high`, both included. `hint` replaces
    the usual hint of the error."""
    return Form(whole(low, high, hint=hint), {"type": "integer", "minimum": low, "maximum": high})


def number_or(special: Mapping[str, object], numbers: Form) -> Form:
    """Return a Form (reader and JSON Schema) for a number, or for one of the words in `special`. A word is read as the
    value that `special` has for it."""
    read = numbers.read
    for word, meaning in special.items():
        read = word_or(word, meaning, read)
    return Form(read, {"anyOf": [{"enum": [*special]}, numbers.schema]})


FLAG = Form(boolean, {"type": "boolean"})


def some(form: Form) -> Form:
    """Return a Form (reader and JSON Schema) for a list with at least one value. `form` is the Form of one value."""
    return Form(list_of(form.read), list_schema(form.schema))


def up_to(most: int, form: Form) -> Form:
    """Return a Form (reader and JSON Schema) for a list of one to `most` values. `form` is the Form of one value."""
    read_list = list_of(form.read)

    def read(node: Node, where: str) -> tuple[object, ...]:
        if isinstance(node, list) and len(node) > most:
            raise refused(where, f"there are {len(node)} entries in it", f"write at most {most}")
        return read_list(node, where)

    return Form(read, {**list_schema(form.schema), "maxItems": most}, form.keys, form.fills)


def some_of(kind: type[StrEnum]) -> Form:
    """Return a Form (reader and JSON Schema) for a list with at least one member of the enum `kind`. The list is read
    into a frozenset."""
    read = list_of(one_of(kind))
    return Form(lambda node, where: frozenset(read(node, where)), list_schema(word_of(kind).schema))


def one_or_more(form: Form) -> Form:
    """Return a Form (reader and JSON Schema) for one value, or for a list of values. Both are read into a tuple. `form`
    is the Form of one value."""
    several = list_of(form.read)

    def read(node: Node, where: str) -> tuple[object, ...]:
        return several(node, where) if isinstance(node, list) else (form.read(node, where),)

    return Form(read, {"anyOf": [form.schema, list_schema(form.schema)]})


def any_of(form: Form) -> Form:
    """Return a Form (reader and JSON Schema) for a list that may be empty. The list is read into a frozenset. `form` is
    the Form of one value."""
    several = list_of(form.read)

    def read(node: Node, where: str) -> frozenset[object]:
        return frozenset() if node == [] else frozenset(several(node, where))

    return Form(read, {"type": "array", "items": form.schema, "uniqueItems": True})


def list_schema(items: Schema) -> Schema:
    """Return the JSON Schema of a list with at least one value, in which no value occurs twice."""
    return {"type": "array", "items": items, "minItems": 1, "uniqueItems": True}


def pattern_schema(pattern: re.Pattern[str]) -> Schema:
    """Return the JSON Schema of a text that the pattern matches as a whole."""
    return {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}

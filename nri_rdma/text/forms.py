"""Keys that people write, as declarations: requests, pools, rules and CDI specs are tables of them.

A Form is how a value is read, together with the JSON Schema of what is read; a Key is a Form under a name. The typed
reading, the schemas (api/*.schema.json) and the tables of the pages (docs/key_tables.py) follow the declarations.
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
    """The reader of a value, and its JSON Schema.

    `keys` are those of a mapping, and `fills` is the dataclass whose fields they fill. `read` is for one device;
    `read_for` returns the reader for another number of devices (None: unknown, or all) where that differs.
    """

    read: Reader[Any]
    schema: Schema = dataclasses.field(default_factory=dict)
    keys: tuple[Key, ...] = ()
    fills: type[Any] | None = None
    read_for: Callable[[int | None], Reader[Any]] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table: the field that it fills, its form, and what it means.

    `default` says in words what holds without the key; "" where the field's own default says it. `required` is the hint
    of the refusal of a mapping without the key, "" if it may be left out. `refused_in` has the places where a request
    may not have the key, each with the hint of the refusal (``{key}`` is the name).
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
    """Return the fields that a mapping with these keys fills. Raises RequestError, with all that is wrong in it."""
    errors = Errors(most=wording.most)
    found = given(mapping(node, where, names_of(keys), errors, wording), where, keys, errors, count)
    errors.refuse()
    return found


def given(
    written: Mapping[str, Node], where: str, keys: tuple[Key, ...], errors: Errors, count: int | None = 1
) -> dict[str, Any]:
    """Return the values of the keys that are written, by the fields that they fill. The keys are read in their own
    order, and each error is added to `errors`."""
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
    """Return the JSON Schema of a mapping with these keys, with the defaults of the dataclass that they fill."""
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


Misfits: TypeAlias = Callable[[Mapping[str, Any], str], Iterable[RequestError]]
"""Makes the errors of what does not fit together in the fields of a mapping, at a place."""


def table(
    fills: type[Any], keys: tuple[Key, ...], wording: MappingErrors = OF_REQUESTS, misfits: Misfits | None = None
) -> Form:
    """Make the form of a mapping with these keys, which becomes a value of that dataclass."""

    def read_for(count: int | None) -> Reader[Any]:
        def read(node: Node, where: str) -> object:
            found = read_keys(node, where, keys, count, wording)
            refuse_all(misfits(found, where) if misfits else ())
            return fills(**found)

        return read

    return Form(read_for(1), schema_of(keys, fills), keys, fills, read_for)


def text_of(pattern: re.Pattern[str], hint: str, text: Reader[str] | None = None) -> Form:
    """Make the form of a text that the pattern matches as a whole; `text` reads it."""
    return Form(matching(pattern, hint, text), pattern_schema(pattern))


def parsed_by(
    parse: Callable[[str], object], hint: str, schema: Schema = TEXT_SCHEMA, text: Reader[str] | None = None
) -> Form:
    """Make the form of a text that a function turns into a value; None and ValueError mean that it cannot."""
    return Form(parsed(parse, hint, text), schema)


def word_of(kind: type[StrEnum], text: Reader[str] | None = None) -> Form:
    """Make the form of a member by its value."""
    return Form(one_of(kind, text), {"enum": [str(member) for member in kind]})


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

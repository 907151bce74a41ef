"""Writes the text of a spec as JSON that JSON and YAML readers understand alike. Equal specs have equal texts.

Keys with default values are left out, which the Go library does, too. Reading the text of a spec returns an equal spec.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any  # Any: JSON values

from nri_rdma.cdi.reading import EDITS_KEYS, SPEC_KEYS
from nri_rdma.cdi.spec import Edits, Spec
from nri_rdma.text.forms import Key


def encode(spec: Spec) -> bytes:
    """Return the bytes of a file with this spec: indented JSON in UTF-8, with a line end."""
    text = json.dumps(spec_document(spec), indent=2, ensure_ascii=False)
    return _UNPRINTABLE.sub(_escaped, text).encode() + b"\n"


def spec_document(spec: Spec) -> dict[str, Any]:
    """Return the spec as a JSON object, with its keys in the order of the schema."""
    return _document(spec, SPEC_KEYS)


def edits_document(edits: Edits) -> dict[str, Any]:
    """Return the ``containerEdits`` of a spec or device as a JSON object."""
    return _document(edits, EDITS_KEYS)


def _document(value: Any, keys: tuple[Key, ...]) -> dict[str, Any]:
    defaults = {item.name: item.default for item in fields(value)}
    found = ((key, getattr(value, key.field)) for key in keys)
    return {key.name: _json(item, key) for key, item in found if item != defaults[key.field]}


def _json(item: Any, key: Key) -> Any:
    if key.name == "annotations":
        return dict(item)
    if isinstance(item, tuple):
        return [_document(it, key.form.keys) if key.form.keys else it for it in item]
    if key.form.keys:
        return _document(item, key.form.keys)
    return item if isinstance(item, int) else str(item)


_UNPRINTABLE = re.compile("[\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff\x85\u2028\u2029]")
"""Characters that JSON allows unescaped, but that YAML forbids or reads as a line end. Other non-ASCII characters are
not escaped: YAML would not join the two halves of an escaped surrogate pair."""


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"

"""Writes the tables of docs/configuration.md, docs/requests.md and docs/metrics.md from what declares their rows.

Run `make generate` after a change of a setting, a key or a metric; tests/house/test_generated.py fails until
that has been done. What is between `<!-- NAME -->` and `<!-- end -->` is generated, the rest is not touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any  # Any: JSON Schemas

from nri_rdma.config.schema import setting_text
from nri_rdma.config.settings import ENVIRONMENT_PREFIX, Settings
from nri_rdma.doors.metrics.declared import METRICS
from nri_rdma.model.request import DeviceRequest
from nri_rdma.text.forms import Key, StandsIn, default_of, pattern_schema
from nri_rdma.text.pools import ADOPT_KEYS, POOL_KEYS, RULE_KEYS
from nri_rdma.text.quantities import QUANTITY
from nri_rdma.text.requests import REQUEST_KEYS
from nri_rdma.text.selectors import SELECTOR_KEYS

DOCS = Path(__file__).resolve().parent


def generated(page: str) -> str:
    """Return the page with its tables made anew."""
    tables = {
        "settings": _settings(),
        "pool keys": _keys(POOL_KEYS),
        "selector keys": _keys(SELECTOR_KEYS),
        "rule keys": _keys(RULE_KEYS),
        "adopt keys": _keys(ADOPT_KEYS),
        "request keys": _request_keys(),
        "metrics": _metrics(),
    }
    for name, lines in tables.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = "\n".join(lines)
        page = block.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
    return page


def _settings() -> Iterable[str]:
    yield "| setting | default | meaning |"
    yield "|---|---|---|"
    for item in fields(Settings):
        if not item.metadata.get("table"):
            text = setting_text(item.default)
            yield f"| `{item.name}` | {f'`{text}`' if text else ''} | {item.metadata['help']} |"
    first = fields(Settings)[0].name
    yield ""
    yield (
        f"So `{first}` is `--{first.replace('_', '-')}` as a flag and `{ENVIRONMENT_PREFIX}{first.upper()}` in the"
        " environment."
    )


def _keys(keys: tuple[Key, ...]) -> Iterable[str]:
    yield "| key | value | meaning |"
    yield "|---|---|---|"
    for key in keys:
        yield f"| `{key.name}` | {_value(key.form.schema)} | {key.text} |"


# Metrics


def _metrics() -> Iterator[str]:
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for it in METRICS:
        yield f"| `{it.name}` | {it.kind} | {', '.join(f'`{label}`' for label in it.labels)} | {it.text} |"


# Requests


def _request_keys() -> Iterator[str]:
    yield "| key of a request | value | default | in | meaning |"
    yield "|---|---|---|---|---|"
    for key in REQUEST_KEYS:
        yield from _rows(key, "", DeviceRequest, _places(key))


def _rows(key: Key, above: str, fills: type[Any] | None, places: str) -> Iterator[str]:
    """Yield the row of a key and those of the keys within its value."""
    name = f"{above}{key.name}"
    value = _bounds(key.form.schema, key.unit)
    yield f"| `{name}` | {value} | {_default(key, fills)} | {places} | {key.text} |"
    for inner in key.form.keys:
        yield from _rows(inner, f"{name}.", key.form.fills, places)


def _default(key: Key, fills: type[Any] | None) -> str:
    default = default_of(key, fills)
    match default:
        case None:
            return key.default
        case bool():
            return f"`{str(default).lower()}`"
        case list():
            return f"`[{', '.join(default)}]`"
    return f"`{default}`"


def _places(key: Key) -> str:
    """Return where a request may have the key."""
    match [place for place in StandsIn if place not in key.refused_in]:
        case [StandsIn.POD]:
            return "the pod's annotation"
        case [StandsIn.POD, StandsIn.CONTAINER]:
            return "annotations"
        case [StandsIn.CDI]:
            return "CDI specs"
    return "all"


# Values


def _bounds(schema: Mapping[str, Any], unit: str) -> str:
    """Return the values that a schema takes in a few words; of numbers their bounds, where people come near them."""
    match schema:
        case {"type": "integer", "maximum": high} if high >= 2**31 - 1:
            return f"number of {unit}" if unit else "number"
        case {"type": "integer", "minimum": low, "maximum": high}:
            return f"{low} to {high} {unit}".rstrip()
        case {"anyOf": [{"enum": [word]}, {"type": "integer"} as numbers]}:
            return f"`{word}`, or {_bounds(numbers, unit)}"
        case {"anyOf": [{"enum": [word]}, {"type": "integer"} as numbers, quantity]}:
            return f"`{word}`, or {_bounds(numbers, unit)}, or {_value(quantity)}"
    return _value(schema)


def _value(schema: Mapping[str, Any]) -> str:
    """Return the values that a schema takes in a few words."""
    match schema:
        case {"enum": words}:
            told = " or ".join(f"`{word}`" for word in words)
        case {"anyOf": [one, {"type": "array", "items": items}]} if one == items:
            told = f"{_value(one)}, or a list"
        case {"anyOf": forms}:
            told = ", or ".join(map(_value, forms))
        case {"type": "array", "items": items}:
            told = f"list of {_value(items)}"
        case {"pattern": pattern} if pattern == _QUANTITY:
            told = "quantity such as `512Mi`"
        case {"type": "object", "properties": properties}:
            told = f"{{ {', '.join(f'`{name}`' for name in properties)} }}"
        case _:
            told = _WORDS.get(schema.get("type", ""), "table")
    return told


_QUANTITY = pattern_schema(QUANTITY)["pattern"]
_WORDS = {"boolean": "`true` or `false`", "integer": "number", "number": "number", "string": "text"}


PAGES = (DOCS / "configuration.md", DOCS / "requests.md", DOCS / "metrics.md")

if __name__ == "__main__":
    for path in PAGES:
        path.write_text(generated(path.read_text()))

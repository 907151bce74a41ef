"""Writes the tables of docs/configuration.md from what reads the configuration.

Run `python docs/configuration_tables.py` after a change of a setting or a key; tests/unit/config/test_schema.py fails
until that has been done. What is between `<!-- NAME -->` and `<!-- end -->` is generated, the rest is not touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any  # Any: JSON Schemas

from nri_rdma.config.schema import setting_text
from nri_rdma.config.settings import ENVIRONMENT_PREFIX, Settings
from nri_rdma.text.pools import ADOPT_KEYS, POOL_KEYS, RULE_KEYS, SELECTOR_KEYS, Key

PAGE = Path(__file__).resolve().parent / "configuration.md"


def generated(page: str) -> str:
    """The page with its tables made anew."""
    tables = {
        "settings": _settings(),
        "pool keys": _keys(POOL_KEYS),
        "selector keys": _keys(SELECTOR_KEYS),
        "rule keys": _keys(RULE_KEYS),
        "adopt keys": _keys(ADOPT_KEYS),
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


def _value(schema: Mapping[str, Any]) -> str:
    """The values that a schema takes, in a few words."""
    match schema:
        case {"enum": words}:
            told = " or ".join(f"`{word}`" for word in words)
        case {"anyOf": [one, {"type": "array"}]}:
            told = f"{_value(one)}, or a list"
        case {"anyOf": forms}:
            told = ", or ".join(map(_value, forms))
        case {"type": "array", "items": items}:
            told = f"list of {_value(items)}"
        case {"type": "object", "properties": properties}:
            told = f"{{ {', '.join(f'`{name}`' for name in properties)} }}"
        case _:
            told = _WORDS.get(schema.get("type", ""), "table")
    return told


_WORDS = {"boolean": "`true` or `false`", "integer": "number", "string": "text"}


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))

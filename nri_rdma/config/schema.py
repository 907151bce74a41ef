"""The JSON Schema of the configuration, generated from the fields of Settings and the tables of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any  # Any: a JSON document

from nri_rdma.config.settings import Memlock, Settings
from nri_rdma.model.request import UNLIMITED
from nri_rdma.text.forms import DRAFT, schema_of
from nri_rdma.text.pools import ADOPT_KEYS, POOL_KEYS, RULE_KEYS, VENDORS
from nri_rdma.text.requests import POOL_NAME
from nri_rdma.text.selectors import SELECTOR_KEYS


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration. The daemon refuses more than the schema: contradictions between keys
    (equal pools, rules that name unknown pools), and invalid names and addresses of the right form."""
    tables: dict[str, Mapping[str, object]] = {
        "pools": {
            "type": "object",
            "propertyNames": {"pattern": f"^(?:{POOL_NAME.pattern})$"},
            "additionalProperties": {"$ref": "#/$defs/pool"},
            "minProperties": 1,
        },
        "rules": {"type": "array", "items": {"$ref": "#/$defs/rule"}, "minItems": 1},
        "adopt": schema_of((*ADOPT_KEYS, VENDORS)),
    }
    return {
        "$schema": DRAFT,
        "title": "Configuration of nri-rdma",
        "type": "object",
        "properties": {item.name: _setting(item, tables) for item in fields(Settings)},
        "additionalProperties": False,
        "$defs": {
            "pool": schema_of(POOL_KEYS),
            "rule": schema_of(RULE_KEYS),
            "adoption": schema_of(ADOPT_KEYS),
            "selector": {**schema_of(SELECTOR_KEYS), "minProperties": 1},
        },
    }


def setting_text(value: object) -> str:
    """Return a setting's value as one writes it in a flag or in the environment."""
    match value:
        case bool():
            return "true" if value else "false"
        case Memlock():
            if value.automatic:
                return "auto"
            return "keep" if value.bytes is None else "unlimited" if value.bytes == UNLIMITED else str(value.bytes)
        case None:
            return ""
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)


def _setting(item: Field[Any], tables: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    if item.name in tables:
        return {"description": item.metadata["help"], **tables[item.name]}
    default = item.default if isinstance(item.default, bool) else setting_text(item.default)
    known = {} if item.default is None else {"default": default}
    return {"description": item.metadata["help"], **item.metadata["form"].schema, **known}

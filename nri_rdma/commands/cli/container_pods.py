"""Containers of podman and Docker in what the daemon tells: it knows them by their ids, people by their names."""

from __future__ import annotations

import json
from typing import Any  # Any: a JSON document

from nri_rdma.host.container_names import container_names

PREFIX = "oci/"
_SHORT = 12
_ASKED_BY_NAME_S = 5.0
"""Without the answer there is nothing to show."""


def with_names(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the name of each such container behind the id that stands for its pod."""
    if f'"{PREFIX}' not in json.dumps(document):
        return document  # the engines need not be asked
    names = {f"{PREFIX}{id_[:_SHORT]}": name for id_, name in container_names().items()}
    named: dict[str, Any] = _replaced(document, {pod: f"{pod} ({name})" for pod, name in names.items()})
    return named


def id_of(name: str) -> str:
    """Return the id of the container of this name; "" where no engine has one."""
    return next((id_ for id_, found in container_names(_ASKED_BY_NAME_S).items() if found == name), "")


def _replaced(value: Any, names: dict[str, str]) -> Any:
    match value:
        case dict():
            return {key: _replaced(it, names) for key, it in value.items()}
        case list():
            return [_replaced(it, names) for it in value]
        case str():
            return names.get(value, value)
        case _:
            return value

"""Adds the names of podman and Docker containers to the daemon's documents. The daemon knows only the ids of
containers, while people use names."""

from __future__ import annotations

import json
from typing import Any  # Any: a JSON document

from nri_rdma.host.container_names import container_names

PREFIX = "oci/"
_SHORT = 12
_ASKED_BY_NAME_S = 5.0
"""How many seconds podman or Docker may take to answer if the user named a container. Without the answer nothing can be
shown."""


def with_names(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the container's name added after each id that stands for a podman or Docker
    container."""
    if f'"{PREFIX}' not in json.dumps(document):
        return document  # no container of an engine is in it, so do not ask the engines
    names = {f"{PREFIX}{id_[:_SHORT]}": name for id_, name in container_names().items()}
    named: dict[str, Any] = _replaced(document, {pod: f"{pod} ({name})" for pod, name in names.items()})
    return named


def id_of(name: str) -> str:
    """Return the id of the container with this name; "" if neither podman nor Docker has such a container."""
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

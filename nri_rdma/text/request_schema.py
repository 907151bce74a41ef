"""The JSON Schema of a request, generated from the tables of its keys."""

from __future__ import annotations

from typing import Any  # Any: a JSON document

from nri_rdma.model.request import DeviceRequest
from nri_rdma.text.forms import DRAFT, StandsIn, schema_of, text_of
from nri_rdma.text.requests import NUMBER_OF_DEVICES, POOL_NAME, POOL_NAME_HINT, REQUEST_KEYS

_REQUEST = {"$ref": "#/$defs/request"}
_OF_POD = {"$ref": "#/$defs/pod"}


def request_schema() -> dict[str, Any]:
    """Return the JSON Schema of a pod's annotation. Its ``$defs`` also have the schema of a single request for each
    place where one is written: pod, container, CDI spec and claim.

    The schema accepts some values that the daemon refuses: contradictions between keys, and addresses and names that
    have the right form but are invalid.
    """
    return {
        "$schema": DRAFT,
        "title": "What a pod asks of nri-rdma",
        "anyOf": [
            {"enum": [None]},
            NUMBER_OF_DEVICES.schema,
            text_of(POOL_NAME, POOL_NAME_HINT).schema,
            _OF_POD,
            {"type": "array", "items": _OF_POD},
        ],
        "$defs": {
            "request": {**schema_of(REQUEST_KEYS, DeviceRequest), "description": "All keys of a request"},
            "pod": _request_in(StandsIn.POD, "A request of the pod's annotation"),
            "container": _request_in(StandsIn.CONTAINER, "A request of the annotation for one container"),
            "granted": _request_in(StandsIn.CDI, "The request of a CDI spec"),
            "parameters": _request_in(StandsIn.CLAIM, "The parameters of a claim"),
        },
    }


def _request_in(place: StandsIn, text: str) -> dict[str, object]:
    allowed = [key.name for key in REQUEST_KEYS if place not in key.refused_in]
    return {"description": text, **_REQUEST, "propertyNames": {"enum": allowed}}

"""The parameters for our driver in resource claims, their templates and device classes.

They stand in ``config[].opaque``, and are the object that annotations have, without the keys by which the claim itself
says which devices, how many and for whom (nri_rdma.text.requests).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any  # Any: a manifest before it is read

from nri_rdma.cdi.problems import path_text
from nri_rdma.commands.validate.problem import Problem, steps_of
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.annotations import meant_key
from nri_rdma.text.placed_yaml import Placed
from nri_rdma.text.pools import node_of
from nri_rdma.text.refusals import each_of, quoted
from nri_rdma.text.requests import read_parameters
from nri_rdma.text.yaml import Path

DEVICES: Mapping[str, tuple[str, ...]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    "DeviceClass": ("spec",),
}
"""Where each kind has its `config`, and its `requests`."""
API_GROUP = "resource.k8s.io/"
MAX_BYTES = 10 * 1024
"""What Kubernetes takes of opaque parameters, as JSON."""


def is_claim(document: Mapping[str, Any]) -> bool:
    """Tell whether a document is of a kind that can have parameters."""
    return str(document.get("kind")) in DEVICES and str(document.get("apiVersion", "")).startswith(API_GROUP)


def why_foreign(document: Mapping[str, Any], driver: str) -> str:
    """Return the sentence about a claim without parameters for that driver, or for one whose name is nearly its; "" for
    other claims."""
    if any(_is_for(opaque, driver) or _meant(opaque, driver) for _, opaque in _opaques(document)):
        return ""
    return f"kind {document['kind']}: no parameters for the driver {driver}, not read"


def claim_problems(document: Mapping[str, Any], at: Path, placed: Placed, file: str, driver: str) -> Iterator[Problem]:
    """Yield what is wrong with the parameters of that driver in a document, which stands at a path of its file."""
    for index, opaque in _opaques(document):
        path = (*at, *DEVICES[document["kind"]], "config", index, "opaque")
        try:
            if _meant(opaque, driver):
                raise _misspelt(opaque, path_text((*path, "driver")), driver)
            if _is_for(opaque, driver):
                _check(opaque, path_text((*path, "parameters")), _count(_devices(document), index))
        except RequestError as error:
            yield from (_problem(it, path, placed, file) for it in each_of(error))


def _opaques(document: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the parameters for drivers, each with the number of its config."""
    configs = _devices(document).get("config")
    for index, config in enumerate(configs if isinstance(configs, list) else ()):
        opaque = config.get("opaque") if isinstance(config, dict) else None
        if isinstance(opaque, dict):
            yield index, opaque


def _devices(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping with `config` and `requests`; an empty one where none is."""
    devices: object = document
    for key in DEVICES[document["kind"]]:
        devices = devices.get(key) if isinstance(devices, dict) else None
    return devices if isinstance(devices, dict) else {}


def _is_for(opaque: Mapping[str, Any], driver: str) -> bool:
    return opaque.get("driver") == driver


def _meant(opaque: Mapping[str, Any], driver: str) -> bool:
    """Return whether the name of the driver is that name but for a typo."""
    written = opaque.get("driver")
    return isinstance(written, str) and meant_key(written, driver) == driver


def _misspelt(opaque: Mapping[str, Any], where: str, driver: str) -> RequestError:
    what = f"{quoted(opaque['driver'])} is our driver's name with a typo: nothing reads these parameters"
    return RequestError(ErrorCode.MANIFEST_VALUE, what, where=where, hint=f"write {driver}")


def _check(opaque: Mapping[str, Any], where: str, count: int | None) -> None:
    if "parameters" not in opaque:
        hint = "write what the devices shall have, such as {mode: exclusive}, or leave the config out"
        raise RequestError(ErrorCode.MANIFEST_VALUE, "parameters is missing", where=where, hint=hint)
    parameters = opaque["parameters"]
    if len(json.dumps(parameters)) > MAX_BYTES:
        what = f"the parameters are larger than {MAX_BYTES} bytes"
        raise RequestError(ErrorCode.ANNOTATION_SIZE, what, where=where, hint="ask with fewer words")
    read_parameters(node_of(parameters), where, count)


def _problem(error: RequestError, path: Path, placed: Placed, file: str) -> Problem:
    below = steps_of(error.where.removeprefix(path_text(path)))
    keys = (error.key,) if error.key else ()
    return Problem.of(error, file, placed.place_of((*path, *below, *keys)), error.where)


# How many devices a config is for


def _count(devices: Mapping[str, Any], index: int) -> int | None:
    """Together over its requests; None when that is not a number, or the claim says it elsewhere. A device class does
    not know, and is read as for one."""
    requests = devices.get("requests")
    if not isinstance(requests, list):
        return 1
    named = devices["config"][index].get("requests")
    chosen = [it for it in requests if isinstance(it, dict) and (not named or it.get("name") in _names(named))]
    counts = [_devices_of(it["exactly"] if isinstance(it.get("exactly"), dict) else it) for it in chosen]
    known = [count for count in counts if count is not None]
    return max(sum(known), 1) if len(known) == len(counts) else None


def _names(named: object) -> list[str]:
    """Of requests; a name with a slash is of one of its alternatives."""
    return [str(name).partition("/")[0] for name in named] if isinstance(named, list) else []


def _devices_of(request: Mapping[str, Any]) -> int | None:
    count = request.get("count", 1)
    if request.get("allocationMode") == "All" or "firstAvailable" in request or not isinstance(count, int):
        return None
    return count

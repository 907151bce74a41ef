"""Checks the parameters for our driver in ResourceClaims, ResourceClaimTemplates and DeviceClasses.

The parameters are in ``config[].opaque``. They have the keys of a request in an annotation, except the keys for facts
that the claim itself expresses: which devices, how many and for which containers (nri_rdma.text.requests).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, TypeAlias  # Any: a manifest before it is read

from nri_rdma.cdi.problems import path_text
from nri_rdma.commands.validate.problem import Problem, steps_of
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.request import DeviceRequest, Mode
from nri_rdma.text.allocated_claim import main_request
from nri_rdma.text.annotations import meant_key
from nri_rdma.text.claim_manifest import (
    DEVICES,
    Reference,
    WrittenRequest,
    count_of,
    devices_of,
    opaques_of,
    reference_of,
    requests_in,
)
from nri_rdma.text.nodes import Node, Path, node_of
from nri_rdma.text.placed_yaml import Placed
from nri_rdma.text.refusals import each_of, listed, nearest, quoted, refused
from nri_rdma.text.requests import read_parameters, read_part

MAX_BYTES = 10 * 1024
"""The largest opaque parameters that Kubernetes accepts, in bytes of JSON."""
Read: TypeAlias = Callable[[Node, str, int | None], DeviceRequest]
"""Reads parameters for a number of devices (None: unknown); the text is their place in the document."""


def why_foreign(document: Mapping[str, Any], driver: str) -> str:
    """Return a sentence if the claim has no parameters for our driver and is therefore not checked; otherwise "". A
    driver name that looks like ours with a typo counts as ours."""
    if any(_is_for(opaque, driver) or _meant(opaque, driver) for _, opaque in opaques_of(document)):
        return ""
    return f"kind {document['kind']}: no parameters for the driver {driver}, not read"


def claim_problems(
    document: Mapping[str, Any],
    at: Path,
    placed: Placed,
    file: str,
    driver: str,
    classes: Mapping[str, Mapping[str, Any]] | None = None,
    on_host: Container[Reference] = (),
) -> Iterator[Problem]:
    """Yield the problems of our driver's parameters in a document. `at` is the document's path in the file.

    `classes` are the known DeviceClasses by name; their parameters apply together with those of the claim. `on_host`
    are the claims of pods that use the host's network.
    """
    every = tuple(requests_in(document, driver, classes or {}))
    requests = tuple(it for it in every if it.is_of(driver)) or every  # a config without requests concerns GPUs, too
    parts = {index for it in requests if it.others for index in it.configs}
    is_wrong = False
    for index, opaque in opaques_of(document):
        path = (*at, *DEVICES[document["kind"]], "config", index, "opaque")
        try:
            if _meant(opaque, driver):
                raise _misspelt(opaque, path_text((*path, "driver")), driver)
            if _is_for(opaque, driver):
                read = read_part if index in parts else read_parameters
                _refuse_unknown_requests(document, index, path_text(path[:-1]))
                _check(opaque, path_text((*path, "parameters")), _counts(devices_of(document), index), read)
        except RequestError as error:
            is_wrong = True
            yield from (_problem(it, path, placed, file) for it in each_of(error))
    for request in requests if not is_wrong else ():
        if parts.intersection(request.configs):
            yield from _merge_problems(request, (*at, *DEVICES[document["kind"]], "config"), placed, file)
        if reference_of(document) in on_host and request.parameters.get("mode") == Mode.EXCLUSIVE:
            yield Problem.of(_without_network(request), file, placed.place_of(at), path_text(at))


def _merge_problems(merge: WrittenRequest, configs: Path, placed: Placed, file: str) -> Iterator[Problem]:
    """Yield the conflicts between the parameters that apply to one request, such as those of its DeviceClass and of its
    claim. The reported place is that of the last parameters in the claim."""
    path = (*configs, merge.configs[-1], "opaque")
    where = path_text((*path, "parameters"))
    try:
        read_parameters(node_of(merge.parameters), where, merge.count)
    except RequestError as error:
        what = f"request {merge.name}, with what {merge.others} says: " if merge.others else ""
        for it in each_of(error):
            told = RequestError(it.code, f"{what}{it.what}", where=it.where, hint=it.hint, key=it.key)
            yield _problem(told, path, placed, file)


def _without_network(request: WrittenRequest) -> RequestError:
    what = (
        f"request {request.name} is for mode exclusive, which moves the netdev into the pod, but a pod with this claim"
        " is on the host's network"
    )
    hint = "write mode: shared, or remove hostNetwork: true from the pod"
    return RequestError(ErrorCode.HOST_NETWORK, what, hint=hint)


def _is_for(opaque: Mapping[str, Any], driver: str) -> bool:
    return opaque.get("driver") == driver


def _meant(opaque: Mapping[str, Any], driver: str) -> bool:
    """Return whether the written driver name is a typo of our driver's name."""
    written = opaque.get("driver")
    return isinstance(written, str) and meant_key(written, driver) == driver


def _misspelt(opaque: Mapping[str, Any], where: str, driver: str) -> RequestError:
    what = f"{quoted(opaque['driver'])} is our driver's name with a typo: nothing reads these parameters"
    return RequestError(ErrorCode.MANIFEST_VALUE, what, where=where, hint=f"write {driver}")


def _refuse_unknown_requests(document: Mapping[str, Any], index: int, where: str) -> None:
    """Raise RequestError if the config with this index names a request that the claim does not have. The API server
    would refuse such a claim."""
    devices = devices_of(document)
    requests = devices.get("requests")
    known = [
        name
        for it in (requests if isinstance(requests, list) else [])
        if isinstance(it, dict)
        for name in (str(it.get("name")), *_alternatives(it))
    ]
    for name in _written(devices["config"][index].get("requests")):
        if name not in known:
            what = f"the claim has no request {quoted(name)}"
            hint = f"{nearest(name, tuple(known))}the requests are {listed(known) or 'none'}"
            raise RequestError(ErrorCode.MANIFEST_VALUE, what, where=where, hint=hint)


def _check(opaque: Mapping[str, Any], where: str, counts: list[list[int | None]], read: Read) -> None:
    if "parameters" not in opaque:
        hint = "write what the devices shall have, such as {mode: exclusive}, or leave the config out"
        raise RequestError(ErrorCode.MANIFEST_VALUE, "parameters is missing", where=where, hint=hint)
    parameters = opaque["parameters"]
    if len(json.dumps(parameters)) > MAX_BYTES:
        what = f"the parameters are larger than {MAX_BYTES} bytes"
        raise RequestError(ErrorCode.ANNOTATION_SIZE, what, where=where, hint="ask with fewer words")
    errors = []
    for of_class in counts:
        try:
            _read_for(of_class, parameters, where, read)
        except RequestError as error:
            errors.append(error)
    if len(errors) == len(counts):
        raise errors[0]


def _read_for(counts: list[int | None], parameters: object, where: str, read: Read) -> None:
    """Read the parameters of requests that ask for so many devices each. Raise RequestError if they are wrong."""
    interface = parameters.get("interface") if isinstance(parameters, dict) and len(counts) > 1 else None
    for key in ("addresses", "hardwareAddr"):
        if isinstance(interface, dict) and key in interface:
            what = f"each of the {len(counts)} requests of this config would have all of it for its own devices"
            hint = f"write a config for each request (`requests: [NAME]`), with its own {key}"
            raise refused(f"{where}.interface.{key}", what, hint)
    known = [count for count in counts if count is not None]
    read(node_of(parameters), where, max(sum(known), 1) if len(known) == len(counts) else None)


def _problem(error: RequestError, path: Path, placed: Placed, file: str) -> Problem:
    below = steps_of(error.where.removeprefix(path_text(path)))
    keys = (error.key,) if error.key else ()
    return Problem.of(error, file, placed.place_of((*path, *below, *keys)), error.where)


# How many devices a config is for


def _counts(devices: Mapping[str, Any], index: int) -> list[list[int | None]]:
    """Return how many devices each request asks for that the config with this index is for. None: the number is not
    known, such as for "all". A DeviceClass has no requests; it counts as one device.

    A config that names no requests has a list for each device class of the claim, because each may be of our driver.
    """
    requests = devices.get("requests")
    named = _written(devices["config"][index].get("requests"))
    by_class: dict[str, list[int | None]] = {}
    for it in requests if isinstance(requests, list) else ():
        if isinstance(it, dict) and (not named or it.get("name") in {main_request(name) for name in named}):
            exactly = it.get("exactly")
            of_class = str(exactly.get("deviceClassName")) if isinstance(exactly, dict) and not named else ""
            alternatives = [name.partition("/")[2] for name in named if main_request(name) == it.get("name")]
            by_class.setdefault(of_class, []).append(_count_of(it, alternatives))
    return [*by_class.values()] or [[1]]


def _count_of(request: Mapping[str, Any], named: list[str]) -> int | None:
    """Return how many devices a request asks for; of a request with alternatives (`firstAvailable`) how many each of
    those alternatives asks for that a config names. None if that is not known, or not one number."""
    first = request.get("firstAvailable")
    if not isinstance(first, list):
        return count_of(request["exactly"] if isinstance(request.get("exactly"), dict) else request)
    meant = [it for it in first if isinstance(it, dict) and (not named or "" in named or it.get("name") in named)]
    counts = {count_of(it) for it in meant}
    return counts.pop() if len(counts) == 1 else None


def _alternatives(request: Mapping[str, Any]) -> list[str]:
    """Return the names by which a config means one alternative of a request: ``REQUEST/ALTERNATIVE``."""
    first = request.get("firstAvailable")
    each = first if isinstance(first, list) else []
    return [f"{request.get('name')}/{it.get('name')}" for it in each if isinstance(it, dict)]


def _written(named: object) -> list[str]:
    return [str(name) for name in named] if isinstance(named, list) else []

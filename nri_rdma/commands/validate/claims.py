"""The parameters for our driver in resource claims, their templates and device classes.

They stand in ``config[].opaque``, and are the object that annotations have, without the keys by which the claim itself
says which devices, how many and for whom (nri_rdma.text.requests).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any  # Any: a manifest before it is read

from nri_rdma.cdi.problems import path_text
from nri_rdma.commands.validate.problem import Problem, steps_of
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.request import DeviceRequest, Mode
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
from nri_rdma.text.placed_yaml import Placed
from nri_rdma.text.pools import node_of
from nri_rdma.text.refusals import each_of, listed, nearest, quoted
from nri_rdma.text.requests import read_parameters, read_part
from nri_rdma.text.yaml import Node, Path

MAX_BYTES = 10 * 1024
"""What Kubernetes takes of opaque parameters, as JSON."""


def why_foreign(document: Mapping[str, Any], driver: str) -> str:
    """Return the sentence about a claim without parameters for that driver, or for one whose name is nearly its; "" for
    other claims."""
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
    """Yield what is wrong with the parameters of that driver in a document, which stands at a path of its file.
    `classes` are the device classes that are known, by their names: what they say counts, too. `on_host` are the claims
    of pods on the host's network."""
    requests = tuple(requests_in(document, driver, classes or {}))
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
                _check(opaque, path_text((*path, "parameters")), _count(devices_of(document), index), read)
        except RequestError as error:
            is_wrong = True
            yield from (_problem(it, path, placed, file) for it in each_of(error))
    for request in requests if not is_wrong else ():
        if parts.intersection(request.configs):
            yield from _merge_problems(request, (*at, *DEVICES[document["kind"]], "config"), placed, file)
        if reference_of(document) in on_host and request.parameters.get("mode") == Mode.EXCLUSIVE:
            yield Problem.of(_without_network(request), file, placed.place_of(at), path_text(at))


def _merge_problems(merge: WrittenRequest, configs: Path, placed: Placed, file: str) -> Iterator[Problem]:
    """Yield what does not go together in a request's parameters, at the place of the claim's last ones."""
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
    """Return whether the name of the driver is that name but for a typo."""
    written = opaque.get("driver")
    return isinstance(written, str) and meant_key(written, driver) == driver


def _misspelt(opaque: Mapping[str, Any], where: str, driver: str) -> RequestError:
    what = f"{quoted(opaque['driver'])} is our driver's name with a typo: nothing reads these parameters"
    return RequestError(ErrorCode.MANIFEST_VALUE, what, where=where, hint=f"write {driver}")


def _refuse_unknown_requests(document: Mapping[str, Any], index: int, where: str) -> None:
    """Raise RequestError for a config that is for a request that the claim has not, as the API server would."""
    devices = devices_of(document)
    requests = devices.get("requests")
    known = [str(it.get("name")) for it in requests if isinstance(it, dict)] if isinstance(requests, list) else []
    for name in _names(devices["config"][index].get("requests")):
        if name not in known:
            what = f"the claim has no request {quoted(name)}"
            hint = f"{nearest(name, tuple(known))}the requests are {listed(known) or 'none'}"
            raise RequestError(ErrorCode.MANIFEST_VALUE, what, where=where, hint=hint)


def _check(
    opaque: Mapping[str, Any], where: str, count: int | None, read: Callable[[Node, str, int | None], DeviceRequest]
) -> None:
    if "parameters" not in opaque:
        hint = "write what the devices shall have, such as {mode: exclusive}, or leave the config out"
        raise RequestError(ErrorCode.MANIFEST_VALUE, "parameters is missing", where=where, hint=hint)
    parameters = opaque["parameters"]
    if len(json.dumps(parameters)) > MAX_BYTES:
        what = f"the parameters are larger than {MAX_BYTES} bytes"
        raise RequestError(ErrorCode.ANNOTATION_SIZE, what, where=where, hint="ask with fewer words")
    read(node_of(parameters), where, count)


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
    counts = [count_of(it["exactly"] if isinstance(it.get("exactly"), dict) else it) for it in chosen]
    known = [count for count in counts if count is not None]
    return max(sum(known), 1) if len(known) == len(counts) else None


def _names(named: object) -> list[str]:
    """Of requests; a name with a slash is of one of its alternatives."""
    return [str(name).partition("/")[0] for name in named] if isinstance(named, list) else []

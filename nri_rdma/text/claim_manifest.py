"""Reads claims in manifests, before they reach the API server. Merges the parameters of each request with the
parameters of its device class. Pure.

Parameters are merged in Kubernetes' order: those of the device class first, then those of the claim one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: a manifest before it is read

from nri_rdma.model.claim import Parameters
from nri_rdma.text.allocated_claim import main_request, merged
from nri_rdma.text.manifest import CLAIM_KINDS
from nri_rdma.text.templates import Way, items_of, ways_to_pods

DEVICES: Mapping[str, tuple[str, ...]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    "DeviceClass": ("spec",),
}
"""By kind of object: the path to the mapping that has `config` and `requests`."""
API_GROUP = "resource.k8s.io/"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRequest:
    """A request of a claim in a manifest, with all of its parameters for the driver.

    `parameters` are merged from the device class and the claim; `from_claim` come from the claim only. `configs` are
    the indexes of the claim's config entries for this request. `others` is a text that names where else parameters come
    from: the class, and every config entry except the last; "" if there is nothing to name. `is_told`: some parameters
    come from the class, or from a config entry that names the request; others may be for other requests. `count` is
    None if it is unknown, or if the request is for all devices. `selectors` are the CEL expressions of class and claim.
    `together` has a pair for each constraint on the request: the constraint's attribute, and the names of the other
    requests that the constraint covers.
    """

    name: str
    device_class: str
    count: int | None
    configs: tuple[int, ...]
    parameters: Parameters
    from_claim: Parameters
    others: str
    is_admin: bool
    is_told: bool
    selectors: tuple[str, ...] = ()
    together: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def is_of(self, driver: str) -> bool:
        """Return whether the request is surely for devices of the driver: it alone has parameters for the driver, or a
        CEL expression of the claim or its class contains the driver's name."""
        return self.is_told or any(driver in it for it in self.selectors)


def is_claim(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a ResourceClaim, a ResourceClaimTemplate or a DeviceClass, the kinds that can have
    parameters for drivers."""
    return str(document.get("kind")) in DEVICES and str(document.get("apiVersion", "")).startswith(API_GROUP)


def classes_in(documents: Iterable[object]) -> dict[str, Mapping[str, Any]]:
    """Return the device classes in these documents, by name."""
    return {
        name: item
        for document in documents
        for item, _ in items_of(document)
        if isinstance(item, dict) and is_claim(item) and item["kind"] == "DeviceClass" and (name := _name_of(item))
    }


Reference: TypeAlias = tuple[str, str, str]
"""The kind, namespace and name of a claim or claim template."""


def request_names_in(documents: Iterable[object]) -> dict[Reference, tuple[str, ...]]:
    """Return the names of the requests of each claim and claim template in these documents."""
    return {
        reference_of(item): tuple(str(it.get("name")) for it in requests if isinstance(it, dict))
        for document in documents
        for item, _ in items_of(document)
        if isinstance(item, dict) and is_claim(item) and isinstance(requests := devices_of(item).get("requests"), list)
    }


def claims_on_host_network(documents: Iterable[object]) -> frozenset[Reference]:
    """Return the claims and claim templates that are used by pods on the host's network in these documents."""
    return frozenset(
        (kind, _namespace_of(item), str(claim[key]))
        for document in documents
        for item, _ in items_of(document)
        for way in ways_to_pods(item)
        for claim in _claims_on_host_network(item, way)
        for key, kind in CLAIM_KINDS.items()
        if key in claim
    )


def _claims_on_host_network(document: object, way: Way) -> Iterator[Mapping[str, Any]]:
    pod: Any = document
    for key in way:
        pod = pod[key] if isinstance(key, int) else pod.get(key) if isinstance(pod, dict) else None
    spec = pod.get("spec") if isinstance(pod, dict) else None
    if isinstance(spec, dict) and spec.get("hostNetwork") is True and isinstance(spec.get("resourceClaims"), list):
        yield from (it for it in spec["resourceClaims"] if isinstance(it, dict))


def reference_of(claim: Mapping[str, Any]) -> Reference:
    """Return the kind, namespace and name of a claim or claim template."""
    return str(claim["kind"]), _namespace_of(claim), _name_of(claim)


def requests_in(
    document: Mapping[str, Any], driver: str, classes: Mapping[str, Mapping[str, Any]]
) -> Iterator[WrittenRequest]:
    """Yield the requests of a claim or claim template, each with its parameters for the driver. A request with
    alternatives (`firstAvailable`) is skipped. `classes` are the known device classes by name."""
    devices = devices_of(document)
    requests = devices.get("requests")
    for request in requests if isinstance(requests, list) and document.get("kind") != "DeviceClass" else ():
        exactly = request.get("exactly") if isinstance(request, dict) else None
        if not isinstance(exactly, dict):
            continue  # a list of alternatives: the scheduler chooses one, and each may have another class
        name, class_name = str(request.get("name")), str(exactly.get("deviceClassName"))
        of_class = [it for _, it in _parameters(classes.get(class_name, {}), driver)]
        own = [(index, it) for index, it in _parameters(document, driver) if _is_for(devices["config"][index], name)]
        first = ", ".join(f"config[{index}]" for index, _ in own[:-1])
        others = " and ".join(it for it in (f"class {class_name}" if of_class else "", first) if it)
        yield WrittenRequest(
            name=name,
            device_class=class_name,
            count=count_of(exactly),
            configs=tuple(index for index, _ in own),
            parameters=merged([*of_class, *(it for _, it in own)]),
            from_claim=merged([it for _, it in own]),
            others=others,
            is_admin=exactly.get("adminAccess") is True,
            is_told=bool(of_class) or any(devices["config"][index].get("requests") for index, _ in own),
            selectors=(*_selectors(devices_of(classes.get(class_name, {}))), *_selectors(exactly)),
            together=tuple(_together(devices, name)),
        )


def _selectors(value: Mapping[str, Any]) -> Iterator[str]:
    selectors = value.get("selectors")
    for it in selectors if isinstance(selectors, list) else ():
        cel = it.get("cel") if isinstance(it, dict) else None
        if isinstance(cel, dict):
            yield str(cel.get("expression"))


def _together(devices: Mapping[str, Any], request: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the attribute of each constraint that covers a request, with the names of the other requests that the
    constraint covers. A constraint without `requests` covers all requests of the claim."""
    constraints, requests = devices.get("constraints"), devices.get("requests")
    every = [str(it.get("name")) for it in requests if isinstance(it, dict)] if isinstance(requests, list) else []
    for it in constraints if isinstance(constraints, list) else ():
        if isinstance(it, dict) and it.get("matchAttribute") and _is_for(it, request):
            named = [str(other) for other in it["requests"]] if it.get("requests") else every
            yield str(it["matchAttribute"]), tuple(other for other in named if main_request(other) != request)


def devices_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping with `config` and `requests` in a document; an empty mapping if there is none."""
    devices: object = document
    for key in DEVICES[str(document.get("kind"))] if document else ("",):
        devices = devices.get(key) if isinstance(devices, dict) else None
    return devices if isinstance(devices, dict) else {}


def count_of(request: Mapping[str, Any]) -> int | None:
    """Return how many devices a request asks for; None if it asks for all, has alternatives (`firstAvailable`), or has
    no whole number as its count."""
    count = request.get("count", 1)
    if request.get("allocationMode") == "All" or "firstAvailable" in request or not isinstance(count, int):
        return None
    return count


def opaques_of(document: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield each `opaque` mapping of a document, which has a driver's name and parameters. With it comes the index of
    its config entry."""
    configs = devices_of(document).get("config")
    for index, config in enumerate(configs if isinstance(configs, list) else ()):
        opaque = config.get("opaque") if isinstance(config, dict) else None
        if isinstance(opaque, dict):
            yield index, opaque


def _parameters(document: Mapping[str, Any], driver: str) -> Iterator[tuple[int, Parameters]]:
    for index, opaque in opaques_of(document):
        parameters = opaque.get("parameters")
        if opaque.get("driver") == driver and isinstance(parameters, dict):
            yield index, parameters


def _is_for(config: Mapping[str, Any], request: str) -> bool:
    named = config.get("requests")
    return not named or (isinstance(named, list) and request in {main_request(str(it)) for it in named})


def _namespace_of(document: Mapping[str, Any]) -> str:
    """Return the namespace of an object; "default" if the object names none."""
    metadata = document.get("metadata")
    return str(metadata.get("namespace") or "default") if isinstance(metadata, dict) else "default"


def _name_of(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""

"""Reads the pods in Kubernetes manifests, as far as nri-rdma uses their fields. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any  # Any: a manifest before it is read

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.pool import Asker
from nri_rdma.model.request import PodRequest
from nri_rdma.text.quantities import cpus_of
from nri_rdma.text.refusals import MAX_QUOTED, listed, quoted, refused
from nri_rdma.text.templates import Way, makes_several, pod_suffix, ways_to_pods

CLAIM_KINDS = {"resourceClaimName": "ResourceClaim", "resourceClaimTemplateName": "ResourceClaimTemplate"}
"""By the key under which a pod names a claim or claim template: the kind of that object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerManifest:
    """A container of a manifest. `env` has the names of the environment variables that the manifest sets."""

    name: str
    env: frozenset[str] = frozenset()
    privileged: bool = False
    resources: tuple[tuple[str, str], ...] = ()
    """The extended resources (of device plugins) that the container asks for, each with its count."""
    has_whole_cpus: bool = False
    """Whether the container's CPU limit is a whole number and equals its CPU request. The kubelet may then give the
    container CPUs that no other container uses."""
    claims: tuple[str, ...] = ()
    """The names of the pod's claims that the container refers to."""
    claim_requests: tuple[tuple[str, str], ...] = ()
    """Pairs of a claim that the container refers to, and the request of the claim whose devices the container gets; ""
    for the devices of all requests."""
    way: Way = ()
    """The keys and list indexes that lead from the pod to this container."""
    written: Mapping[str, Any] = field(default_factory=dict)
    """The container's mapping in the manifest, for code that needs further fields."""

    @property
    def ends_first(self) -> bool:
        """Whether it is an init container that ends before the next container starts; a sidecar does not."""
        return "initContainers" in self.way and self.written.get("restartPolicy") != "Always"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaim:
    """A claim of a pod: its name in the pod, and the claim or claim template (`kind`) from which it comes."""

    name: str
    kind: str
    object: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodManifest:
    """A pod in a manifest, or a pod template. `kind` is the kind of the object that contains the pod. `containers`
    begins with the init containers."""

    kind: str
    namespace: str
    name: str
    annotations: Mapping[str, str]
    containers: tuple[ContainerManifest, ...]
    host_network: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    runtime_class: str = ""
    claims: tuple[PodClaim, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The pod's `spec` in the manifest, for code that needs further fields."""
    is_of_several: bool = False
    """Whether further pods may be made from the same template."""

    @property
    def asker(self) -> Asker:
        """The facts about the pod that the node's rules compare. The manifest does not name the runtime handler, so the
        name of the runtime class takes its place."""
        return Asker(
            namespace=self.namespace,
            runtime_handler=self.runtime_class,
            labels=self.labels,
            host_network=self.host_network,
        )

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def read_pods(document: object, where: str) -> tuple[PodManifest, ...]:
    """Return the pods in one document of a manifest: a pod, a workload with pod templates, or a list of such objects.

    The result is empty for a document without pods. Raises RequestError if Kubernetes would not accept the document.
    """
    if not isinstance(document, dict):
        return ()
    if document.get("kind") == "List" or isinstance(document.get("items"), list):
        items = _list(document.get("items"), f"{where}.items")
        return tuple(pod for number, item in enumerate(items) for pod in read_pods(item, f"{where}.items[{number}]"))
    ways = ways_to_pods(document)
    pods = ((read_pod(document, way, where), way) for way in ways)
    return tuple(replace(pod, name=f"{pod.name}{pod_suffix(document, way, ways)}") for pod, way in pods)


def read_pod(document: Mapping[str, Any], way: Way, where: str) -> PodManifest:
    """Return the pod at the path `way` in a document of a manifest. The pod gets the namespace and name of the
    document's object. Raises RequestError if Kubernetes would not accept the document."""
    owner = _mapping(document.get("metadata"), f"{where}.metadata")
    value: Any = document
    for key in way:
        if isinstance(key, int):
            value, where = value[key], f"{where}[{key}]"
        else:
            value, where = _mapping(value, where).get(key), f"{where}.{key}"
    pod = _pod(str(document["kind"]), owner, _mapping(value, where), where)
    return replace(pod, is_of_several=makes_several(document, way))


def _pod(kind: str, owner: Mapping[str, Any], pod: Mapping[str, Any], where: str) -> PodManifest:
    metadata = _mapping(pod.get("metadata"), f"{where}.metadata")
    spec = _mapping(pod.get("spec"), f"{where}.spec")
    return PodManifest(
        kind=kind,
        namespace=str(owner.get("namespace") or "default"),
        name=str(owner.get("name") or owner.get("generateName") or "unnamed"),
        annotations=_texts(metadata.get("annotations"), f"{where}.metadata.annotations"),
        containers=tuple(
            _container_manifest(item, f"{where}.spec.{key}[{number}]", ("spec", key, number))
            for key in ("initContainers", "containers", "ephemeralContainers")
            for number, item in enumerate(_list(spec.get(key), f"{where}.spec.{key}"))
        ),
        host_network=spec.get("hostNetwork") is True,
        labels=tuple(_texts(metadata.get("labels"), f"{where}.metadata.labels").items()),
        runtime_class=str(spec.get("runtimeClassName") or ""),
        claims=tuple(_pod_claims(spec, where)),
        spec=spec,
    )


def _pod_claims(spec: Mapping[str, Any], where: str) -> Iterator[PodClaim]:
    """Yield the pod's claims that name a claim or a claim template. The API server refuses claims without such a
    name."""
    for number, item in enumerate(_list(spec.get("resourceClaims"), f"{where}.spec.resourceClaims")):
        claim = _mapping(item, f"{where}.spec.resourceClaims[{number}]")
        for key, kind in CLAIM_KINDS.items():
            if claim.get(key):
                yield PodClaim(name=str(claim.get("name")), kind=kind, object=str(claim[key]))


def _container_manifest(value: object, where: str, way: Way) -> ContainerManifest:
    container = _mapping(value, where)
    security = _mapping(container.get("securityContext"), f"{where}.securityContext")
    variables = _list(container.get("env"), f"{where}.env")
    names = (_mapping(item, f"{where}.env[{number}]").get("name") for number, item in enumerate(variables))
    claim_requests = _claim_requests(container, where)
    return ContainerManifest(
        name=str(container.get("name") or ""),
        env=frozenset(str(name) for name in names),
        privileged=security.get("privileged") is True,
        resources=_extended(container, where),
        claims=tuple(dict.fromkeys(name for name, _ in claim_requests)),
        claim_requests=claim_requests,
        has_whole_cpus=_has_whole_cpus(_mapping(container.get("resources"), f"{where}.resources"), where),
        way=way,
        written=container,
    )


def _extended(container: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    """Return the extended resources of a container (their names contain a ``/``), each with its count. If a resource
    has a limit and no request, the limit is its count, which is also Kubernetes' rule."""
    resources = _mapping(container.get("resources"), f"{where}.resources")
    asked = {
        **_mapping(resources.get("limits"), f"{where}.resources.limits"),
        **_mapping(resources.get("requests"), f"{where}.resources.requests"),
    }
    return tuple((str(name), str(count)) for name, count in asked.items() if "/" in str(name))


def _has_whole_cpus(resources: Mapping[str, Any], where: str) -> bool:
    limit = _mapping(resources.get("limits"), f"{where}.resources.limits").get("cpu")
    request = _mapping(resources.get("requests"), f"{where}.resources.requests").get("cpu", limit)
    cpus = cpus_of(str(limit))
    return cpus is not None and cpus > 0 and cpus.denominator == 1 and cpus == cpus_of(str(request))


def _claim_requests(container: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    resources = _mapping(container.get("resources"), f"{where}.resources")
    claims = _list(resources.get("claims"), f"{where}.resources.claims")
    items = [_mapping(item, f"{where}.resources.claims[{number}]") for number, item in enumerate(claims)]
    return tuple((str(item["name"]), str(item.get("request") or "")) for item in items if item.get("name"))


def _texts(value: object, where: str) -> Mapping[str, str]:
    annotations = _mapping(value, where)
    for key, text in annotations.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise no_text(where, str(key), text)
    return annotations


def no_text(where: str, key: str, value: object) -> RequestError:
    """Return the error for a label or annotation whose value is not a text. Its hint shows how to write the value as a
    text."""
    what = f"{key} is not text, and Kubernetes takes nothing else"
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str)
    quotes = "'" if isinstance(value, dict | list) else '"'
    written = f"{quotes}{text}{quotes}" if len(text) <= MAX_QUOTED and quotes not in text else "..."
    return refused(where, what, f"put it in quotes, such as {key}: {written}, or below {key}: |", key)


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _unlike(where, "it is not a mapping", "write key: value there, as Kubernetes does")
    return value


def _list(value: object, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _unlike(where, "it is not a list", "write - in front of each entry, as Kubernetes does")
    return value


def _unlike(where: str, what: str, hint: str) -> RequestError:
    return RequestError(ErrorCode.MANIFEST_VALUE, what, where=where, hint=hint)


def unknown_containers(pod: PodManifest, request: PodRequest | None, prefix: str) -> Iterator[RequestError]:
    """Yield an error for each container that an annotation's key or a request's `containers` names but the pod does not
    have."""
    names = {container.name for container in pod.containers}
    own = f"{prefix}/container."
    for key in sorted(pod.annotations):
        if key.startswith(own) and key.removeprefix(own) not in names:
            yield _unknown_container(key.removeprefix(own), key, names)
    for item in request.requests if request is not None else ():
        if not item.where.startswith(own):  # its key has been reported
            for name in sorted((item.scope.only or frozenset()) - names):
                yield _unknown_container(name, f"{item.where}.containers", names)


def _unknown_container(name: str, where: str, names: set[str]) -> RequestError:
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"write {near[0]}; " if near else ""
    there = f"the containers are {listed(sorted(names))}" if names else "the pod has none"
    return refused(where, f"the pod has no container {quoted(name)}", f"{meant}{there}")


def shared_addresses(pod: PodManifest, request: PodRequest | None) -> Iterator[RequestError]:
    """Yield a warning (an error that is not raised) for each request with addresses in a template from which several
    pods may be made: all of them would have these addresses."""
    for item in request.requests if request is not None and pod.is_of_several else ():
        if item.interface.addresses:
            what = f"every pod of this {pod.kind} would have the same addresses"
            hint = (
                "leave addresses out, and let an init container set each pod's own"
                " (docs/examples/own-addresses.yaml), or write a Pod for each"
            )
            yield refused(f"{item.where}.interface.addresses", what, hint)

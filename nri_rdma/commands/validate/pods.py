"""Checks the annotations of pods and pod templates, and finds the line of each problem.

First the value of each annotation is parsed alone, so that one error hides no other; then all are parsed together, as
the daemon does. Our annotations may also be at a place that does not belong to a pod, such as ``podMetadata`` of a
workflow. Their values are checked, but not the names of containers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any  # Any: a manifest before it is read

from nri_rdma.cdi.problems import path_text
from nri_rdma.commands.explain.remarks import remarks
from nri_rdma.commands.validate.problem import Problem, steps_of
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.network import MAIN_TABLE
from nri_rdma.model.request import DeviceRequest, Mode, PodRequest
from nri_rdma.text.annotations import asks, meant_key, parse_pod_request
from nri_rdma.text.claim_manifest import Reference
from nri_rdma.text.manifest import PodManifest, no_text, read_pod, shared_addresses, unknown_containers
from nri_rdma.text.nodes import Path
from nri_rdma.text.placed_yaml import Place, Placed, place_within, read_one
from nri_rdma.text.refusals import bounded, each_of, listed, nearest, quoted, refused
from nri_rdma.text.templates import Way, entries, ways_to_pods

MAX_KEY_NAME = 63
"""The maximum number of characters after the slash that Kubernetes allows in the key of an annotation."""


def has_annotations(document: Mapping[str, Any], prefix: str) -> bool:
    """Return whether a document contains a pod, a pod template, or annotations of nri-rdma at a place that does not
    belong to a pod."""
    ways = ways_to_pods(document)
    return bool(ways) or any(True for _ in _loose(document, (), ways, prefix))


def pod_problems(
    document: Mapping[str, Any],
    at: Path,
    placed: Placed,
    lines: list[str],
    file: str,
    prefix: str,
    claims: Mapping[Reference, tuple[str, ...]],
) -> Iterator[Problem]:
    """Yield the problems of a document with pods. `at` is the document's path in the file, and `lines` are the file's
    lines. `claims` are the known claims, each with the names of its requests."""
    ways = ways_to_pods(document)
    yield from _misplaced(document, at, ways, _Checked(path=at, placed=placed, lines=lines, file=file), prefix)
    for way in ways:
        path = (*at, *way, "metadata", "annotations")
        checked = _Checked(path=path, placed=placed, lines=lines, file=file)
        yield from _pod_problems(document, way, at, checked, prefix, claims)
    for way in _loose(document, (), ways, prefix):
        checked = _Checked(path=(*at, *way), placed=placed, lines=lines, file=file)
        yield from _of_each(_annotations(document, way), prefix, checked, [])


def _loose(value: object, way: Way, pods: tuple[Way, ...], prefix: str) -> Iterator[Way]:
    """Yield the paths to annotations of nri-rdma that belong neither to a pod nor to an object that contains one."""
    if way in pods:
        return
    for key, inner in entries(value):
        if not (isinstance(key, str) and key.lower().endswith("annotations") and isinstance(inner, dict)):
            yield from _loose(inner, (*way, key), pods, prefix)
        elif _is_for_us(inner, prefix) and not _is_around(way, pods):
            yield (*way, key)


def _is_for_us(annotations: Mapping[str, object], prefix: str) -> bool:
    """Return whether any annotation has our prefix, or a typo of it."""
    return any(asks({key: ""}, prefix) or meant_key(key, prefix) is not None for key in annotations)


def _is_around(way: Way, pods: tuple[Way, ...]) -> bool:
    """Return whether the path leads to the metadata of an object that contains a pod, such as a Deployment."""
    return way[-1:] == ("metadata",) and any(way[:-1] == pod[: len(way) - 1] for pod in pods)


def _pod_problems(
    document: Mapping[str, Any],
    way: Way,
    at: Path,
    checked: _Checked,
    prefix: str,
    claims: Mapping[Reference, tuple[str, ...]],
) -> Iterator[Problem]:
    """Yield the problems of one pod. `way` is the pod's path in the document, and `at` the document's path in the
    file."""
    placed, file = checked.placed, checked.file
    written = _annotations(document, (*way, "metadata", "annotations"))
    asked: list[DeviceRequest] = []
    problems = list(_of_each(written, prefix, checked, asked))
    yield from problems
    try:
        pod = read_pod(_with(document, (*way, "metadata", "annotations"), _readable(written, prefix)), way, "")
    except RequestError as error:
        path = (*at, *steps_of(error.where))
        yield Problem.of(error, file, placed.place_of((*path, error.key)), path_text(path))
        return
    yield from _of_all(pod, prefix, checked, asked, is_sound=not problems)
    for container_way, unknown in _unknown_requests(pod, claims):
        path = (*at, *way, *container_way)
        yield Problem.of(unknown, file, placed.place_of(path), path_text(path))
    for remark in remarks(pod, PodRequest(requests=tuple(asked)), prefix):
        if remark.path:
            path = (*at, *way, *remark.path)
            problem = Problem.of(remark.error, file, placed.place_of(path), path_text(path))
        else:
            problem = checked.problem(remark.error, _key_of(remark.error, pod))
        yield replace(problem, is_warning=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """A set of annotations, with its place in the file."""

    path: Path
    placed: Placed
    lines: list[str]
    file: str

    def problem(self, error: RequestError, key: str) -> Problem:
        """Return an error in the value of the annotation `key` as a Problem with its place in the file. If the place
        inside the value is not known, the place of the key is used."""
        path = (*self.path, key)
        place, text, written = self.placed.place_of(path), self._text(key), self.placed.texts.get(path)
        if text is not None and written is not None:
            inner = _place_in_text(error, key, text)
            place = place_within(self.lines, written, text, inner) if inner is not None else place
        return Problem.of(error, self.file, place, _path(error, key))

    def _text(self, key: str) -> str | None:
        value: Any = self.placed.value  # the path exists, because the error is about the annotations at it
        for step in self.path:
            value = value[step]
        text = value.get(key)
        return text if isinstance(text, str) else None


def _place_in_text(error: RequestError, key: str, text: str) -> Place | None:
    """Return the error's place inside the annotation's value; None if the error is about the whole value."""
    if error.line:
        return Place(error.line, error.column)
    below = steps_of(error.where.removeprefix(key)) if error.where.startswith(key) else ()
    document = read_one(text)
    if document is None or not (below or error.key):
        return None
    return document.place_of((*below, error.key) if error.key else below)


def _path(error: RequestError, key: str) -> str:
    """Return the path of the key inside the annotation's value, for the report. If only a line is known, return the key
    of the annotation."""
    return bounded(key) if error.line or not error.where.startswith(key) else error.where


# Each text


def _annotations(document: Mapping[str, Any], way: Way) -> Mapping[str, object]:
    """Return the annotations at the path; an empty mapping if nothing is there."""
    value: Any = document
    for key in way:
        value = value[key] if isinstance(key, int) else value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _readable(written: Mapping[str, object], prefix: str) -> Mapping[str, object]:
    """Return the annotations without those of ours whose values are not strings, because these have been reported
    already."""
    return {key: text for key, text in written.items() if isinstance(text, str) or not asks({key: ""}, prefix)}


def _with(value: Any, way: Way, annotations: Mapping[str, object]) -> Any:
    """Return the document with `annotations` at the path `way`, in place of the annotations there. If nothing is there,
    the document is returned unchanged."""
    if not way:
        return annotations if isinstance(value, dict) else value
    key, *rest = way
    if isinstance(key, int):
        return [_with(item, tuple(rest), annotations) if place == key else item for place, item in enumerate(value)]
    if not isinstance(value, dict) or key not in value:
        return value
    return {**value, key: _with(value[key], tuple(rest), annotations)}


def _misplaced(
    document: Mapping[str, Any], at: Path, ways: tuple[Way, ...], checked: _Checked, prefix: str
) -> Iterator[Problem]:
    """Yield a problem for each of our annotations on an object that contains a pod, such as a Deployment. Such an
    annotation has no effect: only annotations of the pod itself, or of its template, are read.

    `ways` are the paths of the pods in the document, `at` is the document's path in the file, and `prefix` begins our
    annotations.
    """
    nearest: dict[Way, Way] = {}
    for way in ways:
        for depth in range(len(way)):
            nearest.setdefault(way[:depth], way)
    for outer, way in nearest.items():
        for key in _annotations(document, (*outer, "metadata", "annotations")):
            if asks({key: ""}, prefix):
                path = (*at, *outer, "metadata", "annotations", key)
                what = f"an annotation of a {document['kind']} does not apply to its pods"
                hint = f"move it to {path_text((*way, 'metadata', 'annotations'))}"
                error = RequestError(ErrorCode.ANNOTATION_PLACE, what, hint=hint)
                yield Problem.of(error, checked.file, checked.placed.place_of(path), bounded(key))


def _of_each(
    written: Mapping[str, object], prefix: str, checked: _Checked, asked: list[DeviceRequest]
) -> Iterator[Problem]:
    """Yield the problems of each annotation's value. The requests of valid values are added to `asked`."""
    for key, text in written.items():
        meant = meant_key(key, prefix)
        if meant is not None:
            what = "nothing reads this key"
            yield checked.problem(RequestError(ErrorCode.ANNOTATION_UNKNOWN_KEY, what, hint=f"write {meant}"), key)
        if not asks({key: ""}, prefix):
            continue
        try:
            _refuse_long(key, prefix)
            if not isinstance(text, str):
                raise no_text(key, key, text)
            request = parse_pod_request({key: text}, prefix)
        except RequestError as error:
            yield from (checked.problem(it, key) for it in each_of(error))
        else:
            asked += request.requests if request is not None else ()


def _refuse_long(key: str, prefix: str) -> None:
    name = key.removeprefix(f"{prefix}/")
    if len(name) > MAX_KEY_NAME:
        container = name.removeprefix("container.")
        what = f"the key is {len(name)} characters behind the slash, and Kubernetes takes {MAX_KEY_NAME}"
        hint = f"ask in {prefix}/pod, with containers: [{bounded(container)}]"
        raise refused(bounded(key), what, hint)


# All of them together


def _of_all(
    pod: PodManifest, prefix: str, checked: _Checked, asked: list[DeviceRequest], *, is_sound: bool
) -> Iterator[Problem]:
    if is_sound:
        try:
            request = parse_pod_request(pod.annotations, prefix)
        except RequestError as error:
            yield checked.problem(error, _key_of(error, pod))
        else:
            for refusal in _without_network(pod, request):
                yield checked.problem(refusal, _key_of(refusal, pod))
            for warning in (*shared_addresses(pod, request), *_leading_all(request)):
                yield replace(checked.problem(warning, _key_of(warning, pod)), is_warning=True)
    for unknown in unknown_containers(pod, PodRequest(requests=tuple(asked)), prefix):
        yield checked.problem(unknown, _key_of(unknown, pod))


def _unknown_requests(
    pod: PodManifest, claims: Mapping[Reference, tuple[str, ...]]
) -> Iterator[tuple[Way, RequestError]]:
    """Yield an error for each container that names a request that its claim does not have, with the path from the pod
    to that name. Kubernetes starts such a container without the claim's devices."""
    known = {it.name: claims.get((it.kind, pod.namespace, it.object)) for it in pod.claims}
    for container in pod.containers:
        for index, (name, request) in enumerate(container.claim_requests):
            names = known.get(name)
            if request and names is not None and request not in names:
                what = f"claim {quoted(name)} has no request {quoted(request)}, so the container gets no device of it"
                hint = f"{nearest(request, names)}the requests are {listed(names) or 'none'}"
                yield (
                    (*container.way, "resources", "claims", index, "request"),
                    RequestError(ErrorCode.MANIFEST_VALUE, what, hint=hint),
                )


def _without_network(pod: PodManifest, request: PodRequest | None) -> Iterator[RequestError]:
    """Yield an error for each request of mode exclusive if the pod uses the host's network, because a netdev cannot be
    moved then.

    A request without a mode is not checked, because its pool decides the mode, and only the node knows its pools.
    """
    for item in request.requests if request is not None and pod.host_network else ():
        if item.mode is Mode.EXCLUSIVE:
            what = "mode exclusive moves the netdev into the pod, but this pod is on the host's network"
            hint = "write mode: shared, or remove hostNetwork: true from the pod"
            yield RequestError(ErrorCode.HOST_NETWORK, what, where=item.where, hint=hint)


def _leading_all(request: PodRequest | None) -> Iterator[RequestError]:
    """Yield a warning for each default route in the main table, in the form of an error that is not raised. Only the
    node knows whether more specific routes cover the cluster network."""
    for item in request.requests if request is not None else ():
        for index, route in enumerate(item.routes if item.interface.vrf is None else ()):
            if route.is_over_netdev and not route.destination.prefixlen and route.table == MAIN_TABLE:
                what = "a default route leads the API server, services and DNS over the netdev, too"
                hint = (
                    "write narrower routes, or a table and a rule; leave it so if the pod shall have no other network"
                )
                yield refused(f"{item.where}.routes[{index}].destination", what, hint)


def _key_of(error: RequestError, pod: PodManifest) -> str:
    """Return the key of the annotation that the error is about. If it is about all annotations, return the place that
    the error names."""
    about = [key for key in pod.annotations if error.where.startswith(key)]
    return max(about, key=len, default=error.where)

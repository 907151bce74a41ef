"""The annotations of pods and of pod templates, with the line of everything that is wrong with them.

What each text asks for is parsed alone, so that an error in one hides no other; then all together, as the daemon does.
Annotations of nri-rdma may also be where no pod is (``podMetadata`` of a workflow): then the texts are checked, and the
names of containers are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any  # Any: a manifest before it is read

from nri_rdma.cdi.problems import path_text
from nri_rdma.commands.remarks import remarks
from nri_rdma.commands.validate.problem import Problem, steps_of
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.network import MAIN_TABLE
from nri_rdma.model.request import DeviceRequest, Mode, PodRequest
from nri_rdma.text.annotations import asks, meant_key, parse_pod_request
from nri_rdma.text.manifest import PodManifest, no_text, read_pod, shared_addresses, unknown_containers
from nri_rdma.text.placed_yaml import Place, Placed, place_within, read_one
from nri_rdma.text.refusals import bounded, each_of, refused
from nri_rdma.text.templates import Way, entries, ways_to_pods
from nri_rdma.text.yaml import Path

MAX_KEY_NAME = 63
"""Characters of an annotation's key behind the slash; Kubernetes takes no more."""


def has_annotations(document: Mapping[str, Any], prefix: str) -> bool:
    """Return whether a document has a pod, the template of one, or annotations of nri-rdma elsewhere below it."""
    ways = ways_to_pods(document)
    return bool(ways) or any(True for _ in _loose(document, (), ways, prefix))


def pod_problems(
    document: Mapping[str, Any], at: Path, placed: Placed, lines: list[str], file: str, prefix: str
) -> Iterator[Problem]:
    """Yield what is wrong with a document, which stands at a path of a file of these lines."""
    ways = ways_to_pods(document)
    yield from _misplaced(document, at, ways, _Checked(path=at, placed=placed, lines=lines, file=file), prefix)
    for way in ways:
        path = (*at, *way, "metadata", "annotations")
        yield from _pod_problems(document, way, at, _Checked(path=path, placed=placed, lines=lines, file=file), prefix)
    for way in _loose(document, (), ways, prefix):
        checked = _Checked(path=(*at, *way), placed=placed, lines=lines, file=file)
        yield from _of_each(_annotations(document, way), prefix, checked, [])


def _loose(value: object, way: Way, pods: tuple[Way, ...], prefix: str) -> Iterator[Way]:
    """Yield the ways to annotations of nri-rdma that are neither a pod's nor of an object around a pod."""
    if way in pods:
        return
    for key, inner in entries(value):
        if not (isinstance(key, str) and key.lower().endswith("annotations") and isinstance(inner, dict)):
            yield from _loose(inner, (*way, key), pods, prefix)
        elif _is_for_us(inner, prefix) and not _is_around(way, pods):
            yield (*way, key)


def _is_for_us(annotations: Mapping[str, object], prefix: str) -> bool:
    """Return whether any annotation is ours, or was meant to be."""
    return any(asks({key: ""}, prefix) or meant_key(key, prefix) is not None for key in annotations)


def _is_around(way: Way, pods: tuple[Way, ...]) -> bool:
    """Return whether a way leads to the metadata of an object around a pod."""
    return way[-1:] == ("metadata",) and any(way[:-1] == pod[: len(way) - 1] for pod in pods)


def _pod_problems(document: Mapping[str, Any], way: Way, at: Path, checked: _Checked, prefix: str) -> Iterator[Problem]:
    """Yield those of the pod at the end of the way."""
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
    for remark in remarks(pod, PodRequest(requests=tuple(asked)), prefix):
        if remark.path:
            path = (*at, *way, *remark.path)
            problem = Problem.of(remark.error, file, placed.place_of(path), path_text(path))
        else:
            problem = checked.problem(remark.error, _key_of(remark.error, pod))
        yield replace(problem, is_warning=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """A set of annotations and its place in the file."""

    path: Path
    placed: Placed
    lines: list[str]
    file: str

    def problem(self, error: RequestError, key: str) -> Problem:
        """An error in the text of a key, with its place: in the text where that is known, else of the key."""
        path = (*self.path, key)
        place, text, written = self.placed.place_of(path), self._text(key), self.placed.texts.get(path)
        if text is not None and written is not None:
            inner = _place_in_text(error, key, text)
            place = place_within(self.lines, written, text, inner) if inner is not None else place
        return Problem.of(error, self.file, place, _path(error, key))

    def _text(self, key: str) -> str | None:
        value: Any = self.placed.value  # there are annotations at the path, or nothing would be wrong with them
        for step in self.path:
            value = value[step]
        text = value.get(key)
        return text if isinstance(text, str) else None


def _place_in_text(error: RequestError, key: str, text: str) -> Place | None:
    """None when the error is about all of it."""
    if error.line:
        return Place(error.line, error.column)
    below = steps_of(error.where.removeprefix(key)) if error.where.startswith(key) else ()
    document = read_one(text)
    if document is None or not (below or error.key):
        return None
    return document.place_of((*below, error.key) if error.key else below)


def _path(error: RequestError, key: str) -> str:
    """The key in the text; where only the line is known, that of the text."""
    return bounded(key) if error.line or not error.where.startswith(key) else error.where


# Each text


def _annotations(document: Mapping[str, Any], way: Way) -> Mapping[str, object]:
    """Return the annotations at the end of a way; none when no mapping is there."""
    value: Any = document
    for key in way:
        value = value[key] if isinstance(key, int) else value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _readable(written: Mapping[str, object], prefix: str) -> Mapping[str, object]:
    """Without what is ours and no text: that has been told."""
    return {key: text for key, text in written.items() if isinstance(text, str) or not asks({key: ""}, prefix)}


def _with(value: Any, way: Way, annotations: Mapping[str, object]) -> Any:
    """The document with these in the place of the annotations that it has at the end of the way, if it has any."""
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
    """Yield a problem for each annotation of an object around a pod."""
    nearest: dict[Way, Way] = {}
    for way in ways:
        for depth in range(len(way)):
            nearest.setdefault(way[:depth], way)
    for outer, way in nearest.items():
        for key in _annotations(document, (*outer, "metadata", "annotations")):
            if asks({key: ""}, prefix):
                path = (*at, *outer, "metadata", "annotations", key)
                what = f"an annotation of a {document['kind']} is not one of its pods"
                hint = f"move it to {path_text((*way, 'metadata', 'annotations'))}"
                error = RequestError(ErrorCode.ANNOTATION_PLACE, what, hint=hint)
                yield Problem.of(error, checked.file, checked.placed.place_of(path), bounded(key))


def _of_each(
    written: Mapping[str, object], prefix: str, checked: _Checked, asked: list[DeviceRequest]
) -> Iterator[Problem]:
    """The problems of the texts, one by one; what the others ask for is added to `asked`."""
    for key, text in written.items():
        meant = meant_key(key, prefix)
        if meant is not None:
            what = "the prefix has a typo: nothing reads this key"
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


def _without_network(pod: PodManifest, request: PodRequest | None) -> Iterator[RequestError]:
    """Yield an error for each request whose netdev would move into a pod on the host's network. A request that names no
    mode has that of its pool, which a node knows."""
    for item in request.requests if request is not None and pod.host_network else ():
        if item.mode is Mode.EXCLUSIVE:
            what = "mode exclusive moves the netdev into the pod, but this pod is on the host's network"
            hint = "write mode: shared, or remove hostNetwork: true from the pod"
            yield RequestError(ErrorCode.HOST_NETWORK, what, where=item.where, hint=hint)


def _leading_all(request: PodRequest | None) -> Iterator[RequestError]:
    """Yield a warning, as an error that nobody raises, for each default route of the table main: what else covers the
    cluster network only a node knows."""
    for item in request.requests if request is not None else ():
        for index, route in enumerate(item.routes if item.interface.vrf is None else ()):
            if route.is_over_netdev and not route.destination.prefixlen and route.table == MAIN_TABLE:
                what = "a default route leads the API server, services and DNS over the netdev, too"
                hint = (
                    "write narrower routes, or a table and a rule; leave it so if the pod shall have no other network"
                )
                yield refused(f"{item.where}.routes[{index}].destination", what, hint)


def _key_of(error: RequestError, pod: PodManifest) -> str:
    """The annotation that an error is about; the place it names when it is about them all."""
    about = [key for key in pod.annotations if error.where.startswith(key)]
    return max(about, key=len, default=error.where)

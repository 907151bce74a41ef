"""Parses pod annotations: the requests that a pod author writes.

Keys: ``PREFIX/pod`` or ``PREFIX`` alone holds the pod's list; ``PREFIX/container.NAME`` holds the list that replaces it
for one container. A value is a list of requests, one request, or one word: a number is a count from the default pool,
any other word is a pool's name (nri_rdma.text.requests). An empty text, ``null`` or ``[]`` asks for nothing; a
container with such a value gets nothing of the pod's list.

Law: the author is untrusted. For any strings the result is a PodRequest, None or RequestError, in bounded time, and
nothing has to be checked again later. Whether the pools and devices exist is checked by policy and placement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.request import LABEL, LABEL_HINT, DeviceRequest, PodRequest, Scope
from nri_rdma.text.refusals import bounded, quoted, refused, unknown_key

PREFIX = "rdma.noderesource.dev"

MAX_KEYS = 64
MAX_REQUESTS = 64
"""The most requests of one pod, in all its annotations."""
MAX_TOTAL_BYTES = 256 * 1024
"""The most bytes of all annotations of nri-rdma on one pod. Kubernetes sets this limit for all annotations of a pod
together."""

_REMEMBERED = 64
"""The number of sets of annotations whose requests are kept in memory. The pods of a job have equal annotations, and
the kubelet starts a refused sandbox again with equal annotations."""
_LONG = 32 * 1024
"""The most characters of annotations whose requests are kept in memory; longer annotations are parsed each time.
Sixteen netdevs with eight routes, four rules and four neighbours each take 20 KiB."""


def asks(annotations: Mapping[str, str], prefix: str = PREFIX) -> bool:
    """Return whether any annotation has nri-rdma's prefix. Called for every pod of the node, so it has to be cheap."""
    for key in annotations:  # noqa: SIM110 - a loop is half the cost of any() with a generator
        if key.startswith(prefix) and (len(key) == len(prefix) or key[len(prefix)] == "/"):
            return True
    return False


def meant_key(key: str, prefix: str = PREFIX) -> str | None:
    """Return the key of nri-rdma that the author probably meant, if the key's prefix resembles nri-rdma's, or if a dot
    is in place of the slash; otherwise None."""
    below = key.removeprefix(f"{prefix}.")
    if below != key and "/" not in prefix and (below == "pod" or below.startswith("container.")):
        return f"{prefix}/{below}"
    written, slash, rest = key.partition("/")
    most = min(_MOST_TYPOS, len(prefix) // _CHARACTERS_PER_TYPO)
    if written == prefix or abs(len(written) - len(prefix)) > most or _edits(written.lower(), prefix) > most:
        return None
    return f"{prefix}{slash}{rest}"


_MOST_TYPOS = 2
"""The most characters that may be wrong, missing or superfluous in a mistyped prefix."""
_CHARACTERS_PER_TYPO = 6
"""A prefix must have this many characters for each typo; a shorter one would resemble too many other words."""


def _edits(one: str, other: str) -> int:
    """Return the number of characters to insert, remove or replace to turn one text into the other (Levenshtein
    distance)."""
    row = list(range(len(other) + 1))
    for number, character in enumerate(one, 1):
        before, row = row, [number]
        for place, wanted in enumerate(other):
            row.append(min(before[place] + (character != wanted), before[place + 1] + 1, row[place] + 1))
    return row[-1]


def parse_pod_request(annotations: Mapping[str, str], prefix: str = PREFIX) -> PodRequest | None:
    """Return the requests of the pod; None if it asks for nothing. Raises RequestError if the annotations cannot be
    read, and no other error, whatever the strings are."""
    if not asks(annotations, prefix):
        return None
    ours = tuple(sorted((key, text) for key, text in annotations.items() if asks({key: ""}, prefix)))
    size = sum(len(key) + len(text) for key, text in ours)
    return _remembered(ours, prefix) if size <= _LONG else _parsed(ours, prefix)


def _parsed(ours: tuple[tuple[str, str], ...], prefix: str) -> PodRequest | None:
    """Parse nri-rdma's annotations of a pod, which are given as sorted pairs of key and text. Raises RequestError if
    they cannot be read. Returns None if the pod asks for nothing."""
    from nri_rdma.text.requests import read_requests  # imported late: a node without requests needs no YAML

    lists = _Lists.of(dict(ours), prefix)
    asked = read_requests(lists.pod_text, lists.pod_key, Scope(but=frozenset(lists.containers)), own=False)
    for name, text in lists.containers.items():
        asked += read_requests(text, f"{prefix}/container.{name}", Scope(only=frozenset({name})), own=True)
    requests = tuple(item if item.name else replace(item, name=str(number)) for number, item in enumerate(asked))
    _check_pod(requests, prefix)
    return PodRequest(requests=requests) if requests else None


_remembered = lru_cache(maxsize=_REMEMBERED)(_parsed)


def asks_for_devices(annotations: Mapping[str, str], prefix: str = PREFIX) -> bool:
    """Return whether a pod with these annotations needs devices. Returns True, too, if the annotations cannot be
    read."""
    try:
        request = parse_pod_request(annotations, prefix)
    except RequestError:
        return True
    return request is not None and bool(request.requests)


# Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lists:
    """The texts of a pod's annotations: the request list of the whole pod with its key, and the request lists of single
    containers by the container's name."""

    pod_key: str
    pod_text: str
    containers: Mapping[str, str]

    @classmethod
    def of(cls, ours: Mapping[str, str], prefix: str) -> _Lists:
        _check_total(ours, prefix)
        pod_keys = [key for key in (f"{prefix}/pod", prefix) if key in ours]
        if len(pod_keys) > 1:
            what = f"{prefix}/pod and {prefix} are both the pod's list"
            raise refused(prefix, what, f"keep {prefix}/pod and remove {prefix}")
        pod_key = pod_keys[0] if pod_keys else f"{prefix}/pod"
        containers = {_container_of(key, prefix): text for key, text in sorted(ours.items()) if key not in pod_keys}
        return cls(pod_key=pod_key, pod_text=ours.get(pod_key, ""), containers=containers)


def _check_total(ours: Mapping[str, str], prefix: str) -> None:
    size = sum(len(text.encode(errors="surrogatepass")) for pair in ours.items() for text in pair)
    if size > MAX_TOTAL_BYTES:
        what = f"the annotations are larger than {MAX_TOTAL_BYTES} bytes together"
        raise RequestError(ErrorCode.ANNOTATION_SIZE, what, where=prefix, hint="ask for less")
    if len(ours) > MAX_KEYS:
        what = f"there are more than {MAX_KEYS} annotations"
        raise RequestError(ErrorCode.ANNOTATION_SIZE, what, where=prefix, hint="use containers: in the pod's list")


def _container_of(key: str, prefix: str) -> str:
    rest = key[len(prefix) + 1 :]
    kind, dot, name = rest.partition(".")
    if kind != "container" or not dot:
        known = ("pod", "container.NAME")
        raise unknown_key(rest, known, bounded(key))
    if not LABEL.fullmatch(name):
        raise refused(bounded(key), f"{quoted(name)} is not a container's name", LABEL_HINT)
    return name


# Rules over the whole pod

_Places: TypeAlias = list[tuple[str, str]]
"""Values, each with its place in the annotations."""


def _check_pod(requests: tuple[DeviceRequest, ...], prefix: str) -> None:
    if len(requests) > MAX_REQUESTS:
        what = f"there are {len(requests)} requests in one pod"
        raise RequestError(ErrorCode.ANNOTATION_SIZE, what, where=prefix, hint=f"ask for at most {MAX_REQUESTS}")
    for code, what, hint, places in _UNIQUE:
        first: dict[str, str] = {}
        for value, where in (place for item in requests for place in places(item)):
            if value in first:
                raise RequestError(code, f"{what} {value} is taken by {first[value]}", where=where, hint=hint)
            first[value] = where


def _names(request: DeviceRequest) -> _Places:
    return [(request.name, f"{request.where}.name")]  # env_name() keeps different names different


def _interface_names(request: DeviceRequest) -> _Places:
    name = request.interface.name
    return [] if name is None or "%d" in name else [(name, f"{request.where}.interface.name")]


def _addresses(request: DeviceRequest) -> _Places:
    where = f"{request.where}.interface.addresses"
    return [(str(address.ip), where) for per_device in request.interface.addresses for address in per_device]


def _macs(request: DeviceRequest) -> _Places:
    return [(mac, f"{request.where}.interface.hardwareAddr") for mac in request.interface.macs]


def _routes(request: DeviceRequest) -> _Places:
    vrf = request.interface.vrf  # all routes of the request go into its table
    return [
        (
            f"{route.destination} metric {route.metric} table {route.table if vrf is None else vrf.table}",
            f"{request.where}.routes[{index}]",
        )
        for index, route in enumerate(request.routes)
    ]


_UNIQUE: tuple[tuple[ErrorCode, str, str, Callable[[DeviceRequest], _Places]], ...] = (
    (ErrorCode.NAME_CONFLICT, "the name", "name each request of the pod; the default is its number in it", _names),
    (ErrorCode.NAME_CONFLICT, "the interface name", "choose another, or write %d for a number", _interface_names),
    (ErrorCode.ANNOTATION_VALUE, "the address", "give each address once in the pod", _addresses),
    (ErrorCode.ANNOTATION_VALUE, "the MAC", "give each MAC once in the pod", _macs),
    (ErrorCode.ANNOTATION_VALUE, "the route", "write another metric or table, or one of them only", _routes),
)
"""The kinds of values that may occur only once in a pod. Each entry has the error's code, the words for the value, the
error's hint, and a function that lists the values of a request with their places."""

"""A fake kubelet: PodResources v1 over real gRPC on a unix socket.

It writes protobuf by hand, field by field, so that what it says does not come from the messages that the product reads
it with. Like the real one it sends an entry per device id, topology, processors and memory, allows 100 calls a second
after a burst of 10, and says with status UNKNOWN that it does not know a pod or that Get is off.

`python -m tests.rig.kubelet --pods 250` serves in a process of its own: it prints its socket and ends with its input.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self  # Any: grpc has no types

import grpc

THREADS = 4
SERVICE = "v1.PodResourcesLister"
RATE, BURST = 100.0, 10.0
"""Calls a second, and at once."""
PATIENT = ("--kubelet-wait", "1")
"""Flags of a daemon whose test needs the answer: this kubelet shares its processors with the rest of the suite."""


class Mode(StrEnum):
    """How the kubelet behaves."""

    ANSWERS = "answers"
    HANGS = "hangs"
    WITHOUT_GET = "without Get"
    GET_OFF = "Get is off"
    RATE_LIMITED = "rate limited"
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A device of a claim."""

    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of a container."""

    namespace: str
    name: str
    devices: tuple[Claimed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a container was given: ids by resource, and claims. A claim is told whole, also where the container asks for
    one request of it."""

    name: str
    resources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    cpus: tuple[int, ...] = ()
    """Those that it has alone."""


class FakeKubelet:
    """A kubelet that knows the pods it was told of. `socket` stays the same over `stop` and `start`."""

    def __init__(self, *, mode: Mode = Mode.ANSWERS, clock: Callable[[], float] = time.monotonic) -> None:
        self.mode = mode
        self.modes: dict[str, Mode] = {}
        """By method, where one behaves otherwise."""
        self.delay_s = 0.0
        """How long every call takes."""
        self.calls: list[str] = []
        """The methods that were called, in order; also those that were not answered."""
        self.pods: list[tuple[str, str, tuple[Given, ...]]] = []
        """Namespace, name, containers; a name may be there twice, as with a real one while a pod is replaced."""
        self.payloads: dict[str, bytes] = {}
        """What is sent instead, by method, whatever the pods are."""
        self._folder = Path(tempfile.mkdtemp(prefix="kubelet-"))
        self.socket = self._folder / "kubelet.sock"
        self._server: Any = None
        self._bucket = _Bucket(clock)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def add_pod(self, namespace: str, name: str, *containers: Given) -> None:
        """The kubelet has admitted a pod."""
        self.pods.append((namespace, name, containers))

    def remove_pod(self, namespace: str, name: str) -> None:
        """The kubelet has forgotten all pods of that name."""
        self.pods = [pod for pod in self.pods if pod[:2] != (namespace, name)]

    def start(self) -> None:
        """Serve; the socket is a new one."""
        self.socket.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="kubelet"))
        methods = {
            "Get": grpc.unary_unary_rpc_method_handler(self._get),
            "List": grpc.unary_unary_rpc_method_handler(self._list),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """The kubelet is gone, and so is its socket; calls under way are cut off. Again is no error."""
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None
        self.socket.unlink(missing_ok=True)

    def _get(self, request: bytes, context: Any) -> bytes:
        self._behave("Get", context)
        if "Get" in self.payloads:
            return self.payloads["Get"]
        asked = dict(fields(request))
        name, namespace = asked.get(1, b"").decode(), asked.get(2, b"").decode()
        for pod in self.pods:
            if pod[:2] == (namespace, name):
                return message(1, pod_message(*pod))
        context.abort(grpc.StatusCode.UNKNOWN, f"pod {name} in namespace {namespace} not found")
        raise AssertionError("abort raises")

    def _list(self, _request: bytes, context: Any) -> bytes:
        self._behave("List", context)
        if "List" in self.payloads:
            return self.payloads["List"]
        return b"".join(message(1, pod_message(*pod)) for pod in self.pods)

    def _behave(self, method: str, context: Any) -> None:
        self.calls.append(method)
        given_up = threading.Event()
        if not context.add_callback(given_up.set) or given_up.wait(self.delay_s):
            return
        match self.modes.get(method, self.mode):
            case Mode.RATE_LIMITED if not self._bucket.take():
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            case Mode.HANGS:
                given_up.wait()
            case Mode.WITHOUT_GET if method == "Get":
                context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown method Get for service {SERVICE}")
            case Mode.GET_OFF if method == "Get":
                context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
            case Mode.FAILS:
                context.abort(grpc.StatusCode.INTERNAL, "the checkpoint is corrupt")


class _Bucket:
    """The kubelet's rate limit: a token per call, RATE a second come back, up to BURST. Safe for several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens, self._at = BURST, clock()

    def take(self) -> bool:
        """Whether there was a token."""
        with self._lock:
            now = self._clock()
            self._tokens, self._at = min(BURST, self._tokens + (now - self._at) * RATE), now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


@contextmanager
def rude(path: Path, says: bytes) -> Iterator[None]:
    """A listener that is no gRPC server: it says these bytes to whoever connects, and closes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with suppress(OSError):  # the listener was shut down: that is how it ends
            while True:
                connection, _address = listener.accept()
                with connection, suppress(OSError):  # the client may be gone before it has heard us
                    connection.sendall(says)

    thread = threading.Thread(target=serve, name="rude-listener")
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
        path.unlink()


# protobuf, by hand


def varint(number: int) -> bytes:
    """The number as protobuf writes it: seven bits a byte, the lowest first."""
    rest, low = number >> 7, number & 0x7F
    return bytes([low]) if not rest else bytes([low | 0x80]) + varint(rest)


def message(number: int, content: bytes) -> bytes:
    """A field with a message, or packed numbers."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def text(number: int, value: str) -> bytes:
    """A field with a text."""
    return message(number, value.encode())


def whole(number: int, value: int) -> bytes:
    """A field with a number."""
    return varint(number << 3) + varint(value)


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that has only texts and messages, by number."""
    at = 0
    while at < len(data):
        tag, at = _number_at(data, at)
        assert tag & 7 == 2, "a request has texts only"
        length, at = _number_at(data, at)
        yield tag >> 3, data[at : at + length]
        at += length


def number_in(data: bytes) -> int:
    """The number of a message that has one field, a number; 0 where it is left out."""
    return _number_at(data, 1)[0] if data else 0


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return number, at


def pod_message(namespace: str, name: str, containers: Iterable[Given]) -> bytes:
    """A pod, as both answers have it in their field 1."""
    processors = message(4, bytes([0, 1, 2]))  # of the whole pod, as memory: since 1.37
    return text(1, name) + text(2, namespace) + b"".join(message(3, _container(it)) for it in containers) + processors


def _container(given: Given) -> bytes:
    numa = message(1, whole(1, 1))
    devices = [
        message(2, text(1, resource) + text(2, device_id) + message(3, numa))
        for resource, ids in given.resources.items()
        for device_id in reversed(ids)  # the real one takes them from a map
    ]
    processors = message(3, b"".join(map(varint, given.cpus))) if given.cpus else b""
    memory = message(4, text(1, "memory") + whole(2, 1 << 30) + message(3, numa))
    claims = [message(5, _claim(claim)) for claim in given.claims]
    return b"".join([text(1, given.name), *devices, processors, memory, *claims])


def _claim(claim: Claim) -> bytes:
    """The CDI devices of a driver add up from device to device, as 1.34 to 1.37 send them."""
    devices = []
    by_driver: dict[str, tuple[str, ...]] = {}
    for device in claim.devices:
        names = by_driver[device.driver] = by_driver.get(device.driver, ()) + device.cdi
        devices.append(
            message(
                4,
                b"".join(message(1, text(1, name)) for name in names)
                + text(2, device.driver)
                + text(3, device.pool)
                + text(4, device.device)
                + text(5, "b60ab1c8-a34f-4b53-9ecd-c51e14a2dd02"),
            )
        )
    return b"".join([text(2, claim.name), text(3, claim.namespace), *devices])


def populate(kubelet: FakeKubelet, pods: int) -> None:
    """Pods of two containers, one with a device of a plugin and one with two claimed devices."""
    for number in range(pods):
        claimed = tuple(
            Claimed(driver="net.example", pool="node", device=f"vf{index}", cdi=(f"net.example/vf={number}-{index}",))
            for index in range(2)
        )
        kubelet.add_pod(
            "training",
            f"job-{number}",
            Given(name="sidecar", resources={"rdma/hca_shared": (str(number),)}),
            Given(name="main", claims=(Claim(namespace="training", name=f"job-{number}-net", devices=claimed),)),
        )


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="tests.rig.kubelet", description=__doc__)
    parser.add_argument("--pods", type=int, default=0)
    parser.add_argument("--mode", type=Mode, default=Mode.ANSWERS)
    options = parser.parse_args()
    with FakeKubelet(mode=options.mode) as kubelet:
        populate(kubelet, options.pods)
        print(kubelet.socket, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

"""A runtime and a kubelet of one pod at a time: what they send, how often, and how long its start waits for it."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self  # Any: generated messages

from bench.hosts import Host
from bench.messages import ANNOTATION, TIMEOUT_S, create_container, pod, remove_pod, run_pod, stop_pod
from bench.peer import HEADERS, Listener, Peer
from bench.processes import Place, await_rest, started
from nri_rdma.doors.control.daemon_client import ask_trace
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from tests.rig.daemon import EXCLUSIVE_FIRST
from tests.rig.node import Node, load

NODE = "sixteen"
MTU = 4200
NOT_READY = "network is not ready"
NOT_READY_PAUSE_S = (1.0, 1.5)
"""After which the kubelet comes back when an error has those words."""
ATTEMPTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How long the runtime waited for us at a pod's start, in seconds; `create_s` with the attempts that were refused
    and the kubelet's pauses after them."""

    run_s: float
    create_s: float
    refusals: int
    devices: int

    @property
    def path_s(self) -> float:
        """What the pod's critical path has of us."""
        return self.run_s + self.create_s

    def refuse_unless(self, devices: int) -> None:
        """A figure of a wrong answer is worth nothing. Raises RuntimeError."""
        if self.devices != devices:
            raise RuntimeError(f"the container got {self.devices} devices, not {devices}")


class Subject:
    """A daemon on a host of its own, and its runtime."""

    def __init__(self, host: Host, place: Place, name: str, peer: Peer, timeout_s: float) -> None:
        self.host, self.place, self.name, self.peer = host, place, name, peer
        self.pid = peer.pid
        self._timeout_s = timeout_s
        self._number = 0
        self._random = random.Random(6)

    @classmethod
    @contextmanager
    def started(
        cls,
        folder: Path,
        name: str,
        *,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        node: Node | None = None,
        flags: Sequence[str] = EXCLUSIVE_FIRST,
    ) -> Iterator[Self]:
        """The daemon of that name, from its start to its end, in a folder of its own; by default on `NODE`."""
        node = node or load(NODE)
        with Host(folder / name, node) as host:
            place = Place(folder / name, node, host)
            command = place.daemon_command(name, *flags)
            with (
                Listener(place.socket(name)) as listener,
                started(command, folder / f"{name}.log", settings=settings) as process,
            ):
                peer = accepted(listener, process)
                peer.wait_for_registration()
                peer.activate(timeout_s)
                yield cls(host, place, name, peer, timeout_s)
                peer.close()

    @contextmanager
    def pod(self, nics: int, text: str = "") -> Iterator[Any]:
        """A pod that asks for so many devices alone, with a namespace; afterwards it is stopped, its devices are home,
        and the daemon rests. `text` is its annotation, where it says more than `request`."""
        self._number += 1
        netns = self.host.make_pod(f"pod-{self._number}")
        message = pod(self._number, {ANNOTATION: text or request(nics)} if nics else None, str(netns))
        links = self.host.names()
        await_rest(self.pid)
        yield message
        self.end(message)
        self.host.remove_pod(netns)
        self._await_links(links)
        await_rest(self.pid)

    def one_start(self, nics: int, gap_s: float, text: str = "") -> Start:
        """The start of a pod of its own, as above, which got what it asked for."""
        with self.pod(nics, text) as message:
            start = self.start(message, gap_s)
            start.refuse_unless(nics)
            return start

    def run(self, message: Any) -> float:
        """RunPodSandbox; the seconds until its answer."""
        call = run_pod(message, timeout_s=self._timeout_s)
        begin = time.perf_counter()
        answer = self.peer.call(call)
        seconds = time.perf_counter() - begin
        refuse_error(answer)
        return seconds

    def start(self, message: Any, gap_s: float) -> Start:
        """RunPodSandbox and CreateContainer, with a gap between them in which the runtime does other things."""
        run_s = self.run(message)
        time.sleep(gap_s)
        call = create_container(message, timeout_s=self._timeout_s)
        create_s, refusals = 0.0, 0
        while refusals < ATTEMPTS:
            begin = time.perf_counter()
            response = ttrpc.Response.FromString(self.peer.call(call)[HEADERS:])
            create_s += time.perf_counter() - begin
            if NOT_READY not in response.status.message:
                break
            refusals += 1
            pause = self._random.uniform(*NOT_READY_PAUSE_S)
            time.sleep(pause)
            create_s += pause
        if response.status.code:
            raise RuntimeError(f"{self.name}: CreateContainer: {response.status.message}")
        nodes = nri.CreateContainerResponse.FromString(response.payload).adjust.linux.devices
        devices = sum(1 for node in nodes if "uverbs" in node.path)
        return Start(run_s=run_s, create_s=create_s, refusals=refusals, devices=devices)

    def spent_ns(self, message: Any, *names: str) -> int:
        """The time of the daemon's spans of these names for a pod that is there, in nanoseconds. Raises RuntimeError
        when it does not have each once."""
        spans = ask_trace(self.place.control_socket(self.name), message.id)["spans"]
        found = [it for it in spans if it["name"] in names]
        if sorted(it["name"] for it in found) != sorted(names):
            raise RuntimeError(f"{self.name}: the trace of {message.id} does not have {' and '.join(names)} once")
        return sum(it["end_ns"] - it["start_ns"] for it in found)

    def end(self, message: Any) -> None:
        """StopPodSandbox and RemovePodSandbox."""
        refuse_error(self.peer.call(stop_pod(message, timeout_s=self._timeout_s)))
        refuse_error(self.peer.call(remove_pod(message)))

    def _await_links(self, links: frozenset[str]) -> None:
        deadline = time.monotonic() + 20
        while self.host.names() != links:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {', '.join(sorted(links - self.host.names()))} did not come home")
            time.sleep(0.02)


def accepted(listener: Listener, process: subprocess.Popen[bytes]) -> Peer:
    """The daemon's connection. Raises RuntimeError when it ends instead."""
    try:
        return listener.accept()
    except TimeoutError as error:
        raise RuntimeError(f"no daemon connects; it ended with {process.poll()}") from error


def request(nics: int) -> str:
    """What a pod writes that wants so many devices, each with an MTU and an address."""
    addresses = ", ".join(f"[10.9.{number}.1/24]" for number in range(nics)) if nics > 1 else "10.9.0.1/24"
    return f"- {{name: fabric, count: {nics}, interface: {{mtu: {MTU}, addresses: [{addresses}]}}}}\n"


def refuse_error(answer: bytes) -> None:
    """Raises RuntimeError with the text of an answer that is an error."""
    response = ttrpc.Response.FromString(answer[HEADERS:])
    if response.status.code:
        raise RuntimeError(f"the plugin answered with an error: {response.status.message}")

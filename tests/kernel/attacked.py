"""A daemon in a process of its own on a host of its own, its runtime, and what must hold after an attack on it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any  # Any: generated messages

from bench.hosts import Host
from bench.messages import ANNOTATION, create_container, pod, remove_pod, run_pod, stop_pod
from bench.peer import HEADERS, Listener, Peer
from bench.pods import NOT_READY, refuse_error, request
from bench.processes import Place, await_rest, started
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from tests.kernel.lateness import TRIES
from tests.rig import hostlook
from tests.rig.daemon import EXCLUSIVE_FIRST
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.node import load

NAME = "attacked"
TIMEOUT_S = 2.0
AT_ONCE_S = 1.0
"""An answer of a daemon that waits for nobody."""
RETURN_S = 30.0


class Attacked:
    """The daemon, and the runtime's end of its connections."""

    def __init__(self, folder: Path, place: Place, host: Host, log: Path) -> None:
        self.folder, self.place, self.host, self.log = folder, place, host, log
        self.control, self.state = place.control_socket(NAME), place.state(NAME)
        self._pods = 0
        self._before: tuple[hostlook.Look, Counter[str]] | None = None
        self._last: Peer | None = None

    @property
    def pid(self) -> int:
        """The daemon's process."""
        assert self._last is not None
        return self._last.pid

    def connection(self) -> Peer:
        """Return the daemon's next connection, registered; nothing has been sent. To the daemon it is another
        runtime, so that it connects at once."""
        if self._last is not None:
            self._last.close()
        self.place.socket(NAME, again=True)
        with Listener(self.place.socket(NAME)) as listener:
            self._last = listener.accept()
        self._last.wait_for_registration()
        return self._last

    def session(self) -> Peer:
        """Return the same after the handshake, with a runtime that has no pods."""
        peer = self.connection()
        peer.activate(TIMEOUT_S)
        return peer

    def serve_a_pod(self, peer: Peer) -> None:
        """Start a pod with one device alone, and end it."""
        self._pods += 1
        netns = self.host.make_pod(f"pod-{self._pods}")
        message = pod(self._pods, {ANNOTATION: request(1)}, str(netns))
        refuse_error(peer.call(run_pod(message)))
        answer = wait_until(lambda: _unless_late(peer, message), "the pod's devices", RETURN_S)
        assert not answer.status.code, answer.status.message
        nodes = nri.CreateContainerResponse.FromString(answer.payload).adjust.linux.devices
        assert sum("uverbs" in node.path for node in nodes) == 1
        refuse_error(peer.call(stop_pod(message, timeout_s=RETURN_S)))
        refuse_error(peer.call(remove_pod(message)))
        self.host.remove_pod(netns)

    def remember(self) -> None:
        """Serve a pod, and remember the host and what the daemon has open."""
        self.serve_a_pod(self.session())
        await_rest(self.pid)
        self._before = hostlook.take_settled(self.host.path), self._open()

    def assert_well(self) -> None:
        """The daemon answers and serves a pod; host and descriptors are as remembered; no error was unforeseen."""
        assert self._before is not None
        self.assert_answers()
        self.serve_a_pod(self.session())
        host, descriptors = self._before
        wait_until(lambda: self._open() == descriptors, f"{descriptors} to be open again", RETURN_S)
        changed: list[str] = []

        def is_equal() -> bool:
            changed[:] = hostlook.difference(host, hostlook.take(self.host.path))
            return not changed

        with suppress(DeadlineError):
            wait_until(is_equal, "the host to be equal", RETURN_S)
        assert not changed, changed
        log = self.log.read_text()
        assert "Traceback" not in log, log[log.find("Traceback") - 500 :][:2000]
        assert "\x1b" not in log
        status = ask_status(self.control)
        left = {key: status[key] for key in ("sandboxes", "namespaces_held", "unserved")}
        assert left == {"sandboxes": [], "namespaces_held": 0, "unserved": []}, left

    def assert_answers(self) -> None:
        """The control socket answers at once, in one of three tries: an attack keeps each of them waiting, a busy
        machine does not. None may take the five seconds that a caller waits."""
        took: list[float] = []
        while len(took) < TRIES and min(took, default=AT_ONCE_S) >= AT_ONCE_S:
            begin = time.monotonic()
            ask_status(self.control)
            took.append(time.monotonic() - begin)
        assert min(took) < AT_ONCE_S, took

    def _open(self) -> Counter[str]:
        """What the daemon has open, by kind; a descriptor that it closes while this looks is not open."""
        targets: Counter[str] = Counter()
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                targets[re.sub(r"\[\d+\]", "[]", str(link.readlink()))] += 1
        return targets


def _unless_late(peer: Peer, message: Any) -> Any:
    """Return the answer to CreateContainer; None when the kubelet would ask again."""
    answer = ttrpc.Response.FromString(peer.call(create_container(message))[HEADERS:])
    return None if NOT_READY in answer.status.message else answer


@contextmanager
def attacked(
    folder: Path, *, prepare: Callable[[Place], None] = lambda _place: None, flags: Sequence[str] = ()
) -> Iterator[Attacked]:
    """The daemon from its start to its end, on the node "eight"; `prepare` comes before the start."""
    node = load("eight")
    log = folder / "log"
    with Host(folder / "hosts", node) as host:
        place = Place(folder / "place", node, host)
        path = folder / "config.toml"
        path.write_text(Path(EXCLUSIVE_FIRST[1]).read_text())
        prepare(place)
        with started(place.daemon_command(NAME, "--config", str(path), *flags), log):
            yield Attacked(folder, place, host, log)

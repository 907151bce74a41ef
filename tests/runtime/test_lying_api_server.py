"""What answers in the API server's place lies, while claims are prepared and pods with annotations start.

The pods have no guard: one that the daemon is too late for would start bare.
"""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.rig.api_server import Seen, Server, begin_stream, send_piece
from tests.rig.cri import Cri
from tests.rig.deadline import wait_until
from tests.rig.expect import look
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime
from tests.runtime.asking import PREFIX, Kubernetes, kubernetes, prepared

pytestmark = [pytest.mark.root, pytest.mark.runtime]

CALLERS, PODS = 8, 8
MOST_MIB = 50
UID = "6b4c29a0-0000-4000-8000-0000000000c"


def repeated(piece: bytes, times: int, pause_s: float = 0.0) -> Callable[[Server, BaseHTTPRequestHandler], None]:
    """A body of so many equal pieces."""

    def answer(server: Server, handler: BaseHTTPRequestHandler) -> None:
        begin_stream(handler)
        for _ in range(times):
            send_piece(handler, piece)
            if server.is_over.wait(pause_s):
                break
        send_piece(handler, b"")

    return answer


LIES = {
    "100 MB": repeated(b"[1]," * 250_000, 100),
    "a byte every 4 s": repeated(b"[", 1000, pause_s=4.0),
    "200000 levels": repeated(b"[" * 200_000, 1),
    "3 MiB that are a million objects": repeated(b"[" + b"[]," * ((1 << 20) - 1) + b"0]", 1),
}


@pytest.fixture(scope="module")
def on(runtime: Runtime, node: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    with kubernetes(runtime, node, tmp_path_factory.mktemp("k")) as made:
        yield made


@pytest.mark.parametrize("lie", LIES)
def test_pods_with_annotations_are_served_and_the_daemon_stays_small(
    host_equal: None, on: Kubernetes, cri: Cri, lie: str
) -> None:
    on.api.answer = lambda _handler, _seen: False

    def lies(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        LIES[lie](on.api, handler)
        return True

    socket = on.kubelet_folder / "plugins" / PREFIX / "dra.sock"
    with on.daemon() as daemon:
        wait_until(socket.is_socket, lambda: f"the driver's socket; the daemon's log:\n{daemon.log}")
        assert b"404" in prepared(socket, "default", "rails", UID)[2]  # the client of the API server is loaded now
        on.api.answer = lies
        before_mib = memory_mib(daemon.pid, "VmRSS")
        Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")  # the peak is that from now on
        with claims_that_are_prepared(socket) as errors:
            for number in range(PODS):
                pod = cri.run_pod(
                    f"beside-{number}", annotations={f"{PREFIX}/pod": "[{name: fabric, match: {device: mlx5_3}}]"}
                )
                seen = look(cri, cri.run_container(pod, "main"))
                assert seen.env.get("RDMA_DEVICES_FABRIC") == "mlx5_3"
                assert "uverbs3" in seen.nodes
                cri.delete_pod(pod)
            wait_until(lambda: len(errors) >= CALLERS, "the claims to be refused")
        grown_mib = memory_mib(daemon.pid, "VmHWM") - before_mib
        print(f"{lie}: {before_mib} MiB and {grown_mib} more, {len(errors)} refusals")
        assert {it.partition(b": ")[2].partition(b":")[0] for it in errors} == {b"API-SERVER"}
        assert (daemon.synchronizations, "Traceback" in daemon.log) == (1, False), daemon.log
        assert grown_mib <= MOST_MIB


@contextmanager
def claims_that_are_prepared(socket: Path) -> Iterator[list[bytes]]:
    """Have so many claims prepared, again and again, and keep the driver's errors."""
    errors: list[bytes] = []
    is_over = threading.Event()

    def prepare(number: int) -> None:
        while not is_over.is_set():
            errors.append(prepared(socket, "default", f"rails-{number}", f"{UID}{number}", seconds=40)[2])

    with ThreadPoolExecutor(CALLERS) as pool:
        calls = [pool.submit(prepare, number) for number in range(CALLERS)]
        try:
            yield errors
        finally:
            is_over.set()
        for call in calls:
            call.result()


def memory_mib(pid: int, key: str) -> int:
    (kib,) = re.findall(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kib) >> 10

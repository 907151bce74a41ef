"""Shares: Allocate beside a bare gRPC call, what a thousand of them cost, and events of plain pods beside them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc

from bench.figures import Row, p99_row, paired_row
from bench.messages import Call, create_container, pod, run_pod, synchronize
from bench.peer import TIMEOUT_S, Listener, Peer
from bench.pods import accepted, refuse_error
from bench.processes import Place, await_rest, on_one_cpu, resident_kib, started
from tests.rig.device_manager import FakeDeviceManager
from tests.rig.kubelet import FakeKubelet, Given, message, text

RESOURCE, MANY, HELD = "rdma/hca", 1_000, 100
CALLS, BLOCK = 500, 50
MOST = 1.05
US_PER_NS = 1e-3
WITH, WITHOUT = "with-shares", "without-shares"
POOL = f'[pools.hcas]\nmodes = ["shared"]\ndoor = "resource"\nresource = "{RESOURCE}"\nshares = {MANY}\n'


def rows(place: Place, rounds: int, events: int) -> list[Row]:
    """Two daemons with a kubelet, one of which has 1,000 shares and 100 pods that have one each."""
    with ExitStack() as stack:
        stack.enter_context(on_one_cpu())
        manager = stack.enter_context(FakeDeviceManager(place.folder / "plugins"))
        kubelet = stack.enter_context(FakeKubelet())
        config = place.folder / "config.toml"
        config.write_text(POOL)
        flags = [f"--device-plugin-dir={place.folder / 'plugins'}", f"--kubelet-socket={kubelet.socket}"]
        without = _connected(stack, place, WITHOUT, place.daemon_command(WITHOUT, *flags, "--kubelet-wait=1"))
        bare_kib = resident_kib(without.pid)
        with_shares = _connected(
            stack, place, WITH, place.daemon_command(WITH, *flags, "--kubelet-wait=1", f"--config={config}")
        )
        _await(lambda: RESOURCE in manager.plugins, "the daemon does not register its resource")
        await_rest(with_shares.pid)
        mine = resident_kib(with_shares.pid) / 1024
        bare = bare_kib / 1024
        found = [Row(figure=f"memory with {MANY} shares", value=mine, unit="MiB", floor=bare, ratio=mine / bare)]
        for number in range(HELD):
            asking, share = pod(1000 + number), f"hcas-{number:03}"
            kubelet.add_pod(asking.namespace, asking.name, Given(name="trainer", resources={RESOURCE: (share,)}))
            manager.allocate(RESOURCE, (share,))
            refuse_error(with_shares.call(run_pod(asking)))
        await_rest(with_shares.pid)
        plain = pod(1)
        for name, call in (("sandbox event", run_pod(plain)), ("create, nothing asked", create_container(plain))):
            floor, ours = _alternating(without, with_shares, call, rounds, events)
            figure = f"{name}, beside {HELD} pods with shares"
            found.append(paired_row(figure, floor, ours, unit="us", scale=US_PER_NS, target=MOST))
        found += _allocations(stack, place, manager)  # last: no pod comes for these, and pods are asked about them
    return found


def _allocations(stack: ExitStack, place: Place, manager: FakeDeviceManager) -> list[Row]:
    """Allocate of one share, 500 in a row, beside a server that answers the same number of bytes."""
    request = message(1, text(1, "hcas-999"))
    answer = manager.call(RESOURCE, "Allocate", request)
    socket = place.folder / "echo.sock"
    command = [sys.executable, "-m", "bench.shares", str(socket), answer.hex()]
    stack.enter_context(started(command, place.folder / "echo.log"))
    channel = stack.enter_context(grpc.insecure_channel(f"unix:{socket}"))
    grpc.channel_ready_future(channel).result(TIMEOUT_S)
    bare = channel.unary_unary("/echo.Echo/Allocate")
    floor: list[list[int]] = []
    ours: list[list[int]] = []
    for _ in range(CALLS // BLOCK):
        floor.append([_timed(lambda: bare(request, timeout=TIMEOUT_S)) for _ in range(BLOCK)])
        ours.append([_timed(lambda: manager.call(RESOURCE, "Allocate", request)) for _ in range(BLOCK)])
    return [
        paired_row("Allocate", floor, ours, unit="us", scale=US_PER_NS),
        p99_row("Allocate, p99", floor, ours, scale=US_PER_NS),
    ]


def _alternating(
    one: Peer, other: Peer, call: Call, rounds: int, events: int
) -> tuple[list[list[int]], list[list[int]]]:
    """The times of each, in blocks that follow each other."""
    found: dict[Peer, list[list[int]]] = {one: [], other: []}
    for number in range(rounds):
        for peer in (one, other) if number % 2 else (other, one):
            found[peer].append([_timed(lambda: peer.call(call)) for _ in range(events)])  # noqa: B023
    return found[one], found[other]


def _timed(call: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin


def _await(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.05)


def _connected(stack: ExitStack, place: Place, name: str, command: list[str]) -> Peer:
    listener = stack.enter_context(Listener(place.socket(name, again=True)))
    process = stack.enter_context(started(command, place.folder / f"{name}.log"))
    peer = accepted(listener, process)
    stack.callback(peer.close)
    peer.wait_for_registration()
    peer.activate()
    refuse_error(peer.call(synchronize()))
    await_rest(peer.pid)
    return peer


def main() -> None:
    """Answer every call with the same bytes, until the input ends: the least that a device plugin in Python can be."""
    socket, answer = sys.argv[1], bytes.fromhex(sys.argv[2])
    server = grpc.server(ThreadPoolExecutor(4))
    methods = {"Allocate": grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", methods),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    sys.stdin.read()


if __name__ == "__main__":
    main()

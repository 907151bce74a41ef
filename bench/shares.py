"""Shares: Allocate beside a bare gRPC call, what a thousand of them cost, and events of plain pods beside them."""

from __future__ import annotations

from contextlib import ExitStack

from bench.echo import echoing
from bench.figures import Row, p99_row, paired_row
from bench.messages import create_container, pod, run_pod
from bench.peer import TIMEOUT_S
from bench.pods import refuse_error
from bench.processes import Place, await_rest, on_one_cpu, resident_kib
from bench.rounds import alternating, await_true, synchronized, timed
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
        without = synchronized(stack, place, WITHOUT, place.daemon_command(WITHOUT, *flags, "--kubelet-wait=1"))
        bare_kib = resident_kib(without.pid)
        with_shares = synchronized(
            stack, place, WITH, place.daemon_command(WITH, *flags, "--kubelet-wait=1", f"--config={config}")
        )
        await_true(lambda: RESOURCE in manager.plugins, "the daemon does not register its resource")
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
            floor, ours = alternating(without, with_shares, call, rounds, events)
            figure = f"{name}, beside {HELD} pods with shares"
            found.append(paired_row(figure, floor, ours, unit="us", scale=US_PER_NS, target=MOST))
        found += _allocations(stack, place, manager)  # last: no pod comes for these, and pods are asked about them
    return found


def _allocations(stack: ExitStack, place: Place, manager: FakeDeviceManager) -> list[Row]:
    """Allocate of one share, 500 in a row, beside a server that answers the same number of bytes."""
    request = message(1, text(1, "hcas-999"))
    answer = manager.call(RESOURCE, "Allocate", request)
    bare = stack.enter_context(echoing(place.folder, answer))
    floor: list[list[int]] = []
    ours: list[list[int]] = []
    for _ in range(CALLS // BLOCK):
        floor.append([timed(lambda: bare(request, timeout=TIMEOUT_S)) for _ in range(BLOCK)])
        ours.append([timed(lambda: manager.call(RESOURCE, "Allocate", request)) for _ in range(BLOCK)])
    return [
        paired_row("Allocate", floor, ours, unit="us", scale=US_PER_NS),
        p99_row("Allocate, p99", floor, ours, scale=US_PER_NS),
    ]

"""RDMA devices that pods have alone: rdmaNetns `exclusive`, the lab's rxe, the devices made inside the pod by the CNI.

A soft device cannot follow its netdev from the host, so a network operator's part is played by the chained CNI plugin
in cni_rdma.py: netdev and device are in place before NRI hears of the pod, and the product moves the device only. What
was there before and after is that plugin's word, and the host's.
"""

import ast
import errno
import ipaddress
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.cri import Container, Cri
from tests.rig.deadline import wait_until

CYCLES, SIDE_BY_SIDE = 20, 3
FACTS = Path("/run/lab/cni")
JOURNAL = Path("/run/nri-rdma/journal")


@pytest.fixture(scope="module", autouse=True)
def exclusive(cri: Cri, daemon: Server, rdma_device: str) -> Iterator[None]:
    """The driver that can move, and a kernel that shows each device in one namespace only."""
    with kernel.labs_rxe(rdma_device), kernel.rdma_netns("exclusive"):
        yield


def asks_for(*devices: str) -> dict[str, str]:
    lines = (f"- {{mode: exclusive, match: {{device: {device}}}}}" for device in devices)
    return {f"{verbs.PREFIX}/pod": "\n".join(lines)}


def facts(pod: str, when: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ast.literal_eval((FACTS / f"{pod}.{when}").read_text())
    return found


@pytest.mark.outcome("exclusive-traffic")
def test_two_pods_with_a_device_each_exchange_data(cri: Cri) -> None:
    names = ("rxe1-receiver", "rxe1-sender")
    with (
        verbs.pod(cri, names[0], asks_for(f"{names[0]}.0")) as receivers,
        verbs.pod(cri, names[1], asks_for(f"{names[1]}.0")) as senders,
    ):
        # GID 1 is that of the IPv4 address; 0 is a link-local one, which no route leads to.
        receiver, sender = (
            verbs.Peer(sandbox=pod, container=verbs.start(cri, pod, "main"), device=f"{name}.0", gid_index=1)
            for name, pod in zip(names, (receivers, senders), strict=True)
        )
        verbs.bandwidth(cri, receiver, sender)


@pytest.fixture
def trio(cri: Cri) -> Iterator[tuple[str, Container]]:
    """A pod with three devices of its own, and its container."""
    pod = "rxe3-trio"
    with verbs.pod(cri, pod, asks_for(*(f"{pod}.{number}" for number in range(3)))) as sandbox:
        yield pod, verbs.start(cri, sandbox, "main")


def nodes(cri: Cri, container: Container) -> list[str]:
    """The uverbs nodes that a container has."""
    shown = cri.exec(container, ["ls", "/dev/infiniband"])
    return [name for name in shown.stdout.split() if name.startswith("uverbs")]


@pytest.mark.outcome("exclusive-alone")
def test_the_pod_opens_each_of_its_devices_and_nobody_else_sees_them(cri: Cri, trio: tuple[str, Container]) -> None:
    pod, container = trio
    made = facts(pod, "add")
    assert len(nodes(cri, container)) == len(made) == 3
    for device in made:
        shown = wait_until(lambda: devinfo(cri, container, device), "its GIDs", seconds=10)  # noqa: B023 - called here
        guid = re.search(r"node_guid:\s+(\S+)", shown)
        assert guid is not None
        assert guid.group(1) == device["node_guid"]
        assert re.search(r"state:\s+PORT_ACTIVE", shown)
    assert kernel.rdma_devices().isdisjoint(device["name"] for device in made)


def devinfo(cri: Cri, container: Container, device: dict[str, Any]) -> str | None:
    """What a container's ibv_devinfo says of a device; None until the kernel has filled its GIDs in again."""
    shown = cri.exec(container, ["ibv_devinfo", "-v", "-d", device["name"]])
    assert shown.exit_code == 0, shown.stderr
    gids = {ipaddress.IPv6Address(gid) for gid in re.findall(r"GID\[\s*\d+\]:\s+([0-9a-f:.]+)", shown.stdout)}
    return shown.stdout if gids >= {ipaddress.IPv6Address(gid) for gid, _ in device["gids"]} else None


@pytest.mark.outcome("exclusive-alone")
def test_its_nodes_cannot_be_opened_on_the_host(cri: Cri, trio: tuple[str, Container]) -> None:
    found = nodes(cri, trio[1])
    assert len(found) == 3
    for name in found:
        with pytest.raises(PermissionError) as caught:
            os.open(f"/dev/infiniband/{name}", os.O_RDWR)
        assert caught.value.errno == errno.EPERM


@pytest.mark.outcome("exclusive-alone")
def test_its_nodes_cannot_be_opened_in_another_pod(cri: Cri, trio: tuple[str, Container]) -> None:
    """Not even where somebody hands them to the runtime: the node is there, and its number may be used."""
    paths = [f"/dev/infiniband/{name}" for name in nodes(cri, trio[1])]
    with verbs.pod(cri, "thief", {}) as sandbox:
        thief = cri.create_container(sandbox, "main", image=WORKLOAD, devices=paths)
        cri.start(thief)
        for path in paths:
            number = Path(path).stat().st_rdev
            make = f"mknod /tmp/own c {os.major(number)} {os.minor(number)} && rm /tmp/own"
            allowed = cri.exec(thief, ["sh", "-c", make])
            assert allowed.exit_code == 0, allowed.stderr
            opened = cri.exec(thief, ["sh", "-c", f"exec 3<>{path}"])
            assert opened.exit_code != 0
            assert "Operation not permitted" in opened.stderr


@pytest.mark.outcome("exclusive-alone")
def test_at_the_pods_end_the_devices_are_home_as_they_were(cri: Cri) -> None:
    pod = "rxe3-home"
    before = kernel.NodeState.take()
    with verbs.pod(cri, pod, asks_for(*(f"{pod}.{number}" for number in range(3)))) as sandbox:
        verbs.start(cri, sandbox, "main")
    assert facts(pod, "del") == facts(pod, "add")
    wait_until(lambda: not before.differences_to(kernel.NodeState.take()), "the host to be as before", seconds=10)


@pytest.mark.outcome("exclusive-twenty")
def test_twenty_pods_some_side_by_side_leave_nothing_behind(cri: Cri, daemon: Server) -> None:
    one_pod(cri, "rxe1-first")
    before = held(daemon)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        names = [f"rxe1-again{number}" for number in range(CYCLES)]
        list(threads.map(lambda name: one_pod(cri, name), names))
    wait_until(lambda: held(daemon) == before, f"{before}, not {held(daemon)}", seconds=10)


def one_pod(cri: Cri, pod: str) -> None:
    """From nothing to nothing, with a device in it meanwhile."""
    with verbs.pod(cri, pod, asks_for(f"{pod}.0"), runtime_handler=verbs.NOWHERE):
        wait_until(lambda: f"{pod}.0" not in kernel.rdma_devices(), "the device to be away", seconds=10)
    assert facts(pod, "del") == facts(pod, "add")


def held(daemon: Server) -> tuple[int, int, list[str]]:
    """The daemon's descriptors, the machine's network namespaces, the journals."""
    return (
        len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())),
        namespaces(),
        sorted(path.name for path in JOURNAL.iterdir()),
    )


def namespaces() -> int:
    """Those that a process lives in, or that have a name."""
    shown = subprocess.run(["lsns", "-t", "net", "-n", "-o", "NS"], capture_output=True, text=True, check=True)
    return len(shown.stdout.split())

"""Shares of one device, of which nobody wrote limits: the daemon asks the device what it can have, and the kernel holds
each container to its part. Only the kubelet is no real one."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.host import verbs as verbs_program
from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import STATE
from tests.lab.guest.process import Server
from tests.rig.control import ask_status
from tests.rig.cri import Container, Cri
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.rig.kubelet import fields
from tests.rig.unit_file import OPTIONS

DEVICE, RESOURCE, SHARES = "rxe7", "lab.example.com/hca", 4  # as pools.toml has them
PLUGINS = Path("/var/lib/kubelet/device-plugins")
ANNOTATIONS = 4
"""The field of AllocateResponse."""
PARTS = SHARES + 1
AH_MAX = 32767
"""Of the kinds of object rxe has fewest address handles (RXE_MAX_AH)."""
OBJECTS, HANDLES = AH_MAX // PARTS, 1024 // PARTS
DENIES = (
    *("CapabilityBoundingSet", "NoNewPrivileges", "RestrictAddressFamilies", "RestrictNamespaces", "DevicePolicy"),
    *("SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber", "DeviceAllow", "ProtectClock", "UMask"),
    *("ProtectHostname", "LockPersonality", "MemoryDenyWriteExecute", "RestrictRealtime", "RestrictSUIDSGID"),
)
RUNS, LEAST_RATIO = 5, 0.5
"""The best rate of so many runs counts; how much of it is left. Rates of one emulated machine differ by a half."""


@pytest.fixture
def kubelet(daemon: Server, rdma_device: str) -> Iterator[FakeDeviceManager]:
    """A kubelet at which the shares of a device are registered that was not there before."""
    subprocess.run(["ip", "link", "add", "seventh", "type", "veth", "peer", "name", "seventh-peer"], check=True)
    for name in ("seventh", "seventh-peer"):
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
    kernel.rdma("link", "add", DEVICE, "type", "rxe", "netdev", "seventh")
    with FakeDeviceManager(PLUGINS) as manager:
        wait_until(lambda: "Healthy" in _health(manager), "the shares to be healthy", seconds=60)
        wait_until(lambda: _limits() is not None, "the device to have told its capacity", seconds=60)
        yield manager
    kernel.rdma("link", "delete", DEVICE)
    subprocess.run(["ip", "link", "delete", "seventh"], check=True)
    wait_until(lambda: {it["name"] for it in _status()["devices"]} == {rdma_device}, "it to be gone", seconds=60)


@pytest.mark.timeout(500)
@pytest.mark.outcome("share-limits")
def test_the_last_share_of_a_device_is_whole_while_all_others_hold_all_they_get(
    cri: Cri, kubelet: FakeDeviceManager
) -> None:
    names = [f"share-{number}" for number in range(SHARES)]
    with verbs.pod(cri, "last", {}) as sandbox:
        last = verbs.start(cri, sandbox, "main", annotations=allocated(kubelet, 0))
        assert counted(cri, last, "rdma.max") == f"{DEVICE} hca_handle={HANDLES} hca_object={OBJECTS}"
        peer = verbs.Peer(sandbox=sandbox, container=last, device=DEVICE, gid_index=0)
        alone = max(verbs.bandwidth(cri, peer, peer) for _ in range(RUNS))
        _with_neighbours(cri, kubelet, names[1:], peer, alone)


@pytest.mark.machine("systemd")
def test_the_service_may_ask_devices_with_all_that_its_unit_denies(rdma_device: str) -> None:
    denied = [word for name in DENIES for value in OPTIONS[name] for word in ("-p", f"{name}={value}")]
    ask = ["/usr/bin/python3", "-I", verbs_program.__file__, rdma_device]
    command = ["systemd-run", "--wait", "--pipe", "--quiet", *denied, *ask]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert (told["device"], told["capacity"]["ah"]) == (rdma_device, AH_MAX), done.stdout


def _with_neighbours(cri: Cri, kubelet: FakeDeviceManager, names: list[str], peer: verbs.Peer, alone: float) -> None:
    """Check the last share while one pod after the other takes all that it gets."""
    if names:
        with verbs.pod(cri, names[0], {}) as sandbox:
            greedy = verbs.start(cri, sandbox, "main", annotations=allocated(kubelet, len(names)))
            take_all(cri, greedy)
            _with_neighbours(cri, kubelet, names[1:], peer, alone)
        return
    assert_whole(cri, peer.container)
    beside = max(verbs.bandwidth(cri, peer, peer) for _ in range(RUNS))
    print(f"alone {alone} MiB/s, beside {SHARES - 1} exhausted shares {beside} MiB/s, ratio {beside / alone:.2f}")
    assert beside >= LEAST_RATIO * alone


def take_all(cri: Cri, container: Container) -> None:
    """Have a container make address handles, and then contexts, until the kernel refuses, and keep them."""
    keep(cri, container, "ahs")
    assert got(cri, container, "ahs") == f"{OBJECTS - 1} EAGAIN"  # and its protection domain
    keep(cri, container, "contexts")
    assert got(cri, container, "contexts") == f"{HANDLES - 2} EAGAIN"  # and its own, and the first program's
    assert counted(cri, container, "rdma.current") == f"{DEVICE} hca_handle={HANDLES} hca_object={OBJECTS}"


def assert_whole(cri: Cri, container: Container) -> None:
    """Check that a container gets its part of everything: contexts, queue pairs, and of the scarcest kind all."""
    unused = f"{DEVICE} hca_handle=0 hca_object=0"
    for what, most in (("contexts", HANDLES - 1), ("qps", OBJECTS - 2), ("ahs", OBJECTS - 1)):
        keep(cri, container, what)
        assert got(cri, container, what) == f"{most} EAGAIN"
        cri.exec(container, ["sh", "-c", "kill $(cat /tmp/pid)"])
        wait_until(lambda: counted(cri, container, "rdma.current") == unused, "its end", seconds=60)


def keep(cri: Cri, container: Container, what: str) -> None:
    """Start a program in the container that makes as many as it gets, and keeps them."""
    program = f"verbs-probe {what} {DEVICE} 1000000 >/tmp/{what} 2>&1 </dev/null & echo $! >/tmp/pid"
    assert cri.exec(container, ["sh", "-c", f"rm -f /tmp/{what}; {program}"]).exit_code == 0


def got(cri: Cri, container: Container, what: str) -> str:
    """Return what the program says that it got."""
    answer = wait_until(
        lambda: cri.exec(container, ["cat", f"/tmp/{what}"]).stdout.strip() or None, f"all {what}", seconds=120
    )
    print(f"{what}: {answer}")
    return answer


def counted(cri: Cri, container: Container, name: str) -> str:
    """Return the device's line of a file of the container's cgroup."""
    text = kernel.cgroup_file(cri.container_status(container).pid, name)
    (line,) = (line.strip() for line in text.splitlines() if line.startswith(f"{DEVICE} "))
    return line


def allocated(kubelet: FakeDeviceManager, number: int) -> dict[str, str]:
    """Return the annotations that a container gets with a share."""
    (answer,) = kubelet.allocate(RESOURCE, (f"shares-{number}",))
    pairs = (dict(fields(content)) for field, content in answer if field == ANNOTATIONS)
    return {pair[1].decode(): pair[2].decode() for pair in pairs}


def _health(manager: FakeDeviceManager) -> set[str]:
    plugin = manager.plugins.get(RESOURCE)
    return set(plugin.devices.values()) if plugin is not None else set()


def _limits() -> Any:
    (pool,) = (it for it in _status()["pools"] if it["name"] == "shares")
    return pool["limits"].get(DEVICE, {}).get("hca_object")


def _status() -> dict[str, Any]:
    return ask_status(STATE / "control.sock")

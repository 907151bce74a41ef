"""Shares of one device, of which nobody wrote limits: the daemon asks the device what it can have, and the kernel holds
each container to its part. Only the kubelet is no real one."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from nri_rdma.host.verbs import program
from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import STATE
from tests.lab.guest.process import Server
from tests.rig.control import ask_status
from tests.rig.cri import Container, Cri, Sandbox
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.rig.kubelet import fields
from tests.rig.unit_file import OPTIONS

DEVICE, RESOURCE, SHARES = "shared0", "lab.example.com/hca", 4  # as pools.toml has them
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
LEAST_RATIO = 0.5
"""How much of its rate a share keeps. The emulated machine's own rates differ by a half from one run to the next."""
TAKE_ALL = f"""
verbs-probe ahs {DEVICE} 1000000 >/tmp/ahs &
until [ -s /tmp/ahs ]; do sleep 0.1; done
exec verbs-probe contexts {DEVICE} 1000000 >/tmp/contexts
"""
"""Makes address handles, and then contexts, until the kernel refuses, and keeps them."""
TAKE_AND_GIVE_BACK = f"""
for what in contexts qps ahs; do
    verbs-probe $what {DEVICE} 1000000 >/tmp/$what &
    until [ -s /tmp/$what ]; do sleep 0.1; done
    kill $!
    wait
    cat /tmp/$what
done
"""


@pytest.fixture
def kubelet(daemon: Server, rdma_device: str) -> Iterator[FakeDeviceManager]:
    """A kubelet at which the shares of a device are registered that was not there before."""
    with device_with_shares(rdma_device) as manager:
        yield manager


@contextmanager
def device_with_shares(rdma_device: str, state: Path = STATE) -> Iterator[FakeDeviceManager]:
    """A device, and a kubelet at which its shares are registered, for the daemon with that state."""
    subprocess.run(["ip", "link", "add", "seventh", "type", "veth", "peer", "name", "seventh-peer"], check=True)
    for name in ("seventh", "seventh-peer"):
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
    kernel.rdma("link", "add", DEVICE, "type", "rxe", "netdev", "seventh")
    try:
        with FakeDeviceManager(PLUGINS) as manager:
            wait_until(lambda: "Healthy" in _health(manager), "the shares to be healthy", seconds=60)
            wait_until(lambda: _limits(state) is not None, "the device to have told its capacity", seconds=60)
            yield manager
    finally:
        kernel.rdma("link", "delete", DEVICE)
        subprocess.run(["ip", "link", "delete", "seventh"], check=True)
    wait_until(lambda: {it["name"] for it in _status(state)["devices"]} == {rdma_device}, "it to be gone", seconds=60)


@pytest.mark.outcome("share-limits")
def test_the_last_share_of_a_device_is_whole_while_all_others_hold_all_they_get(
    cri: Cri, kubelet: FakeDeviceManager
) -> None:
    with verbs.pod(cri, "last", {}) as sandbox, ExitStack() as others:
        last = verbs.start(cri, sandbox, "main", annotations=allocated(kubelet, 0))
        assert counted(cri, last, "rdma.max") == f"{DEVICE} hca_handle={HANDLES} hca_object={OBJECTS}"
        peer = verbs.Peer(sandbox=sandbox, container=last, device=DEVICE, gid_index=0)
        # Beside a busy machine, an emulated one may send nothing for the first seconds.
        alone = wait_until(lambda: rate(cri, peer) or None, "any traffic", seconds=80)
        for number in range(1, SHARES):
            taking = others.enter_context(verbs.pod(cri, f"share-{number}", {}))
            take_all(cri, taking, allocated(kubelet, number))
        assert_whole(cri, last)
        wait_until(lambda: keeps(alone, rate(cri, peer)), "the rate of before", seconds=80)


@pytest.mark.machine("systemd")
def test_the_service_may_ask_devices_with_all_that_its_unit_denies(rdma_device: str) -> None:
    denied = [word for name in DENIES for value in OPTIONS[name] for word in ("-p", f"{name}={value}")]
    ask = ["/usr/bin/python3", "-I", program.__file__, "capacity", rdma_device]
    command = ["systemd-run", "--wait", "--pipe", "--quiet", *denied, *ask]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert (told["device"], told["capacity"]["ah"]) == (rdma_device, AH_MAX), done.stdout


def take_all(cri: Cri, sandbox: Sandbox, annotations: dict[str, str]) -> None:
    """Start a container that takes all that the kernel gives to it, and check how much that is."""
    container = verbs.start(cri, sandbox, "main", ("sh", "-c", TAKE_ALL), annotations=annotations)
    taken = Path(f"/proc/{cri.container_status(container).pid}/root/tmp")
    contexts = taken / "contexts"
    wait_until(lambda: contexts.exists() and contexts.stat().st_size > 0, "it to take all", seconds=80)
    assert (taken / "ahs").read_text() == f"{OBJECTS - 1} EAGAIN\n"  # and its protection domain
    assert contexts.read_text() == f"{HANDLES - 2} EAGAIN\n"  # and its own, and the first program's
    assert counted(cri, container, "rdma.current") == f"{DEVICE} hca_handle={HANDLES} hca_object={OBJECTS}"


def assert_whole(cri: Cri, container: Container) -> None:
    """Check that a container gets its part of everything: contexts, queue pairs, and of the scarcest kind all."""
    told = cri.exec(container, ["sh", "-c", TAKE_AND_GIVE_BACK], seconds=80)
    assert told.stdout.splitlines() == [f"{most} EAGAIN" for most in (HANDLES - 1, OBJECTS - 2, OBJECTS - 1)], told


def rate(cri: Cri, peer: verbs.Peer) -> float:
    """Return the MiB/s that a container sends to itself over its device: the median of three runs."""
    return median(verbs.bandwidth(cri, peer, peer) for _ in range(3))


def keeps(alone: float, beside: float) -> bool:
    """Return whether a rate is that of before, as far as can be told here."""
    print(f"alone {alone} MiB/s, beside {SHARES - 1} exhausted shares {beside} MiB/s")
    return beside >= LEAST_RATIO * alone


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


def _limits(state: Path) -> Any:
    (pool,) = (it for it in _status(state)["pools"] if it["name"] == "shares")
    return pool["limits"].get(DEVICE, {}).get("hca_object")


def _status(state: Path) -> dict[str, Any]:
    return ask_status(state / "control.sock")

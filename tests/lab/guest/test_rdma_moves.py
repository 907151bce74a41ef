"""The engine on a real RDMA subsystem: a soft-RoCE device moves into a pod and comes home, whatever happens to the pod.

The device's netdev stays on the host: a soft one would vanish with it. So only the RDMA device moves here.
"""

import os
import socket
import stat
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.decide.inject import AttachedDevice
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.host.netlink.rdma.subsystem import RdmaSocket
from nri_rdma.host.sysfs.scan import scan
from nri_rdma.model.device import LinkLayer, RdmaDevice
from nri_rdma.model.nldev import ObjectKind
from tests.lab.guest import kernel
from tests.lab.guest.test_nldev import NAME, exclusive, index, needs_movable_rxe, needs_stock_rxe, run
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import POD_PATH, make_placed, make_pod
from tests.unit.rigs.attachments import Rig

__all__ = ["exclusive", "index"]

SOON = 20.0


@pytest.fixture
def rig(exclusive: None, index: int, tmp_path: Path) -> Iterator[Rig]:
    """An engine on the machine's kernel, and a pod's namespace."""
    run(f"ip netns add {Path(POD_PATH).name}")
    linux = LinuxKernel()
    rig = Rig(state=tmp_path, kernel=linux)
    yield rig
    rig.close()
    linux.host.close()
    subprocess.run(["ip", "netns", "delete", Path(POD_PATH).name], check=False)


def on_host() -> RdmaDevice:
    (device,) = (it for it in scan(Path("/sys"), Path("/dev")).devices if it.name == NAME)
    return device


def begin(rig: Rig) -> Attachment:
    """Taken for an InfiniBand device, which may go without a netdev: the soft one's has to stay."""
    device = on_host()
    ports = tuple(replace(port, link_layer=LinkLayer.INFINIBAND) for port in device.ports)
    return rig.sandboxes.begin(make_pod(), (make_placed((replace(device, netdevs=(), ports=ports),)),), None)


def attached(rig: Rig) -> AttachedDevice:
    sandbox = begin(rig)
    sandbox.attach_done.result(SOON)
    assert sandbox.now.record is not None
    return sandbox.now.record.attached[0].devices[0]


def end(rig: Rig) -> None:
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    done.result(SOON)


def names() -> list[str]:
    return [link["ifname"] for link in kernel.rdma_links()]


def pinning() -> Counter[str]:
    """What this process has open that can keep a namespace: those themselves, and sockets of netlink. The rest is that
    of pytest and of the session's clients, whose threads open and close what they like."""
    return Counter(filter(None, map(_kind, Path("/proc/self/fd").iterdir())))


def _kind(link: Path) -> str:
    try:
        target = str(link.readlink())
    except FileNotFoundError:
        return ""  # that of the look itself
    if target.startswith("net:"):
        return "namespace"
    if not target.startswith("socket:"):
        return ""
    with socket.socket(fileno=os.dup(int(link.name))) as copy:
        return "netlink" if copy.family is socket.AF_NETLINK else ""


def wait_for_home(before: list[dict[str, Any]]) -> None:
    """Its port says ACTIVE again a moment after the device is there."""
    wait_until(lambda: kernel.rdma_links() == before, f"{before} instead of {kernel.rdma_links()}", seconds=10)


@needs_movable_rxe
def test_the_pod_has_the_device_alone_and_its_nodes_have_the_new_numbers(rig: Rig) -> None:
    before, kinds = kernel.rdma_links(), [node.kind for node in on_host().char_devices]
    item = attached(rig)
    assert NAME not in names()
    assert {"umad", "uverbs"} <= set(kinds)  # until 6.1, with issm
    assert [node.kind for node in item.device.char_devices] == kinds
    for node in item.device.char_devices:
        status = Path(node.path).stat()
        assert stat.S_ISCHR(status.st_mode)
        assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (node.major, node.minor)
        with pytest.raises(PermissionError):
            os.open(node.path, os.O_RDWR)  # from the host's namespace
    end(rig)
    wait_for_home(before)


@needs_movable_rxe
def test_ten_pods_one_after_the_other_leave_nothing_behind(rig: Rig) -> None:
    before, held = kernel.rdma_links(), pinning()
    for _ in range(10):
        attached(rig)
        end(rig)
    wait_for_home(before)
    assert (rig.sandboxes.held(), pinning()) == (0, held)


@needs_movable_rxe
def test_a_pod_whose_namespace_is_removed_returns_the_device_under_its_name(rig: Rig) -> None:
    before = kernel.rdma_links()
    attached(rig)
    run(f"ip netns exec {Path(POD_PATH).name} rdma dev set {NAME} name mine")
    run(f"ip netns delete {Path(POD_PATH).name}")
    end(rig)
    wait_for_home(before)


@needs_movable_rxe
def test_a_daemon_that_was_killed_left_a_journal_that_brings_the_device_home(rig: Rig, tmp_path: Path) -> None:
    before = kernel.rdma_links()
    attached(rig)
    rig.close()  # what is attached stays
    assert NAME not in names()
    linux = LinuxKernel()
    second = Rig(state=tmp_path, kernel=linux)
    assert second.sandboxes.recover(lambda _record: None) == ()
    end(second)
    second.close()
    linux.host.close()
    wait_for_home(before)


def refusal(rig: Rig) -> PlacementError:
    before = kernel.rdma_links()
    with pytest.raises(PlacementError) as caught:
        begin(rig).attach_done.result(SOON)
    assert kernel.rdma_links() == before
    return caught.value


@needs_movable_rxe
def test_a_device_that_a_process_has_open_is_refused(rig: Rig, index: int) -> None:
    with subprocess.Popen(["ibv_asyncwatch", "-d", NAME], stdout=subprocess.PIPE) as holder:
        try:
            with RdmaSocket() as sock:
                wait_until(lambda: bool(sock.objects(index, ObjectKind.CTX)), "the context to be there", seconds=10)
            error = refusal(rig)
        finally:
            holder.kill()
    assert error.code is ErrorCode.DEVICE_IN_USE
    assert f"process {holder.pid} (ibv_asyncwatch) has it open" in error.what


@needs_stock_rxe
def test_a_driver_that_cannot_move_is_refused(rig: Rig) -> None:
    assert refusal(rig).code is ErrorCode.RDMA_NETNS

"""The netlink codec and its socket on a real RDMA subsystem, compared with `rdma` and sysfs.

The device is one of the test's own, made on a veth, so that the daemon's is left alone. Every answer is also kept,
datagram by datagram, as nldev-*.bin of the results: tests/unit/wire/data is a copy of those.
"""

import errno
import json
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.host.netlink.namespaces.namespace import HeldNamespace
from nri_rdma.host.netlink.rdma.subsystem import RdmaSocket, can_move, visit
from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.nldev import ObjectKind
from nri_rdma.wire import nldev
from tests.lab.guest import kernel
from tests.rig.deadline import wait_until

Test = TypeVar("Test", bound=Callable[..., object])
RECORDS = Path(os.environ["RDMA_LAB_RESULTS"])
NAME, NETDEV, POD = "lab_rxe", "nldev0", "nldev-pod"
needs_stock_rxe = pytest.mark.parametrize("index", ["stock"], indirect=True)


def needs_movable_rxe(test: Test) -> Test:
    """Runs with the lab's rxe, where the lab knows that it moves."""
    on_labs_rxe: Test = pytest.mark.parametrize("index", ["lab"], indirect=True)(test)
    marked: Test = pytest.mark.outcome("move-lab")(on_labs_rxe)
    return marked


@pytest.fixture(scope="module")
def index(request: pytest.FixtureRequest, rdma_device: str) -> Iterator[int]:
    """The index of a soft-RoCE device with an active port, of Debian's driver or of the lab's."""
    with kernel.labs_rxe(rdma_device) if getattr(request, "param", "stock") == "lab" else nullcontext():
        yield from _device()


def _device() -> Iterator[int]:
    run(f"ip link add {NETDEV} type veth peer name nldev1")
    run(f"ip link set {NETDEV} up")
    run("ip link set nldev1 up")
    run(f"rdma link add {NAME} type rxe netdev {NETDEV}")
    wait_until(lambda: rdma(f"link show {NAME}/1")[0]["state"] == "ACTIVE", "an active port", seconds=20)
    yield int(rdma(f"dev show {NAME}")[0]["ifindex"])
    run(f"rdma link delete {NAME}")
    run(f"ip link delete {NETDEV}")


@pytest.fixture
def exclusive() -> Iterator[None]:
    """rdmaNetns exclusive, while no namespace but the host's exists."""
    with kernel.rdma_netns("exclusive"):
        yield


@pytest.fixture
def host() -> Iterator[HeldNamespace]:
    held = LinuxKernel().host
    yield held
    held.close()


@pytest.fixture
def pod() -> Iterator[HeldNamespace]:
    """An empty namespace."""
    run(f"ip netns add {POD}")
    linux = LinuxKernel()
    held = linux.open_namespace(f"/run/netns/{POD}")
    yield held
    held.close()
    linux.host.close()
    run(f"ip netns delete {POD}")


def test_devices_are_those_of_rdma_dev(index: int) -> None:
    with RdmaSocket() as sock:
        found = {(it.index, it.name, it.node_guid) for it in sock.devices()}
    assert found == {(it["ifindex"], it["ifname"], it["node_guid"]) for it in rdma("dev")}
    assert index in {number for number, *_ in found}


def test_guid_and_netdev_are_those_of_sysfs(index: int) -> None:
    folder = Path("/sys/class/infiniband", NAME)
    with RdmaSocket() as sock:
        (device,) = (it for it in sock.devices() if it.index == index)
        (port,) = sock.ports(index)
    assert (folder / "node_guid").read_text().strip() == device.node_guid
    assert (port.netdev_name, port.netdev_index) == (NETDEV, socket.if_nametoindex(NETDEV))


def test_char_devices_have_the_numbers_of_the_nodes(index: int) -> None:
    nodes = kernel.infiniband_devices()
    with RdmaSocket() as sock:
        found = [
            sock.char_device(index, CharKind.UVERBS),
            sock.char_device(index, CharKind.UMAD, 1),
            sock.char_device(None, CharKind.RDMA_CM),
        ]
    for item in found:
        assert item is not None
        assert nodes[item.name][1:] == (item.major, item.minor)


def test_the_kernel_tells_no_issm_whether_the_device_has_one_or_not(index: int) -> None:
    with RdmaSocket() as sock:
        assert sock.char_device(index, CharKind.ISSM, 1) is None


def test_the_kernels_own_queue_pair_tells_its_maker(index: int) -> None:
    with RdmaSocket() as sock:
        makers = {(it.kernel_user, it.pid) for it in sock.objects(index, ObjectKind.QP)}
    assert makers == {("ib_core", None)}


def test_an_open_context_tells_its_process(index: int) -> None:
    with subprocess.Popen(["ibv_asyncwatch", "-d", NAME], stdout=subprocess.PIPE) as holder:
        try:
            with RdmaSocket() as sock:
                wait_until(lambda: bool(sock.objects(index, ObjectKind.CTX)), "the context to be there", seconds=10)
                assert [it.pid for it in sock.objects(index, ObjectKind.CTX)] == [holder.pid]
        finally:
            holder.kill()


def test_a_device_that_does_not_exist_is_einval() -> None:
    with RdmaSocket() as sock, pytest.raises(KernelError) as caught:
        sock.ports(4711)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("devices", lambda index: nldev.get_devices()),
        ("ports", nldev.get_ports),
        ("uverbs", lambda index: nldev.get_char_device(CharKind.UVERBS, index, None)),
        ("umad", lambda index: nldev.get_char_device(CharKind.UMAD, index, 1)),
        ("issm", lambda index: nldev.get_char_device(CharKind.ISSM, index, 1)),
        ("rdma_cm", lambda index: nldev.get_char_device(CharKind.RDMA_CM, None, None)),
        ("system", lambda index: nldev.get_netns_mode()),
        ("qp", lambda index: nldev.get_objects(ObjectKind.QP, index)),
        ("mr", lambda index: nldev.get_objects(ObjectKind.MR, index)),
    ],
)
def test_answers_are_kept_for_the_unit_tests(index: int, name: str, question: Callable[[int], Any]) -> None:
    replies, datagrams = nldev.Replies(question(index), 1), []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, nldev.NETLINK_RDMA) as sock:
        sock.bind((0, 0))
        sock.send(question(index).encode(1))
        while not replies.done:
            datagrams.append(sock.recv(1 << 16))
            replies.receive_data(datagrams[-1])
    record(name, datagrams)


def test_in_shared_mode_no_device_can_move(index: int, host: HeldNamespace, pod: HeldNamespace) -> None:
    with RdmaSocket() as sock:
        assert sock.netns_mode() is RdmaNetns.SHARED
    assert not can_move(host, index, pod)


@needs_stock_rxe
def test_a_driver_that_cannot_move_is_known_before_anything_moves(
    exclusive: None, index: int, host: HeldNamespace, pod: HeldNamespace
) -> None:
    assert not can_move(host, index, pod)
    with RdmaSocket() as sock, pytest.raises(KernelError) as caught:
        sock.move(index, pod.fd)
    assert caught.value.errno == errno.EOPNOTSUPP


@needs_movable_rxe
def test_asking_whether_a_device_can_move_changes_nothing(
    exclusive: None, index: int, host: HeldNamespace, pod: HeldNamespace
) -> None:
    before = kernel.infiniband_devices(), rdma("link"), uevents()
    assert can_move(host, index, pod)
    assert (kernel.infiniband_devices(), rdma("link"), uevents()) == before


@needs_movable_rxe
def test_a_device_moves_into_the_pod_and_home(
    exclusive: None, index: int, host: HeldNamespace, pod: HeldNamespace
) -> None:
    with RdmaSocket() as sock:
        before = sock.char_device(index, CharKind.UVERBS), sock.devices()
        sock.move(index, pod.fd)
        assert index not in {it.index for it in sock.devices()}
        inside = visit(pod, "look", lambda it: (it.char_device(index, CharKind.UVERBS), it.devices()))
        assert [(it.index, it.name) for it in inside[1]] == [(index, NAME)]
        assert inside[0] is not None
        node = Path("/dev/infiniband", inside[0].name).stat().st_rdev
        assert (os.major(node), os.minor(node)) == (inside[0].major, inside[0].minor)
        with pytest.raises(KernelError) as caught:
            sock.move(index, host.fd)  # the host no longer has it
        assert caught.value.errno == errno.EINVAL
        visit(pod, "bring home", lambda it: it.move(index, host.fd))
        assert sock.devices() == before[1]


def record(name: str, datagrams: list[bytes]) -> None:
    """Each datagram behind its length, u32 little endian."""
    (RECORDS / f"nldev-{name}.bin").write_bytes(b"".join(struct.pack("<I", len(it)) + it for it in datagrams))


def uevents() -> str:
    """The number of the kernel's last uevent."""
    return Path("/sys/kernel/uevent_seqnum").read_text()


def rdma(arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(["rdma", "-j", *arguments.split()], capture_output=True, text=True, check=True)
    shown: list[dict[str, Any]] = json.loads(done.stdout)
    return shown


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)

"""What a pod asks (`mode`) against what the kernel is set to (`rdmaNetns`): every cell of the table in docs/support.md.

Where a cell needs a device whose netdev is in the pod, the chained CNI plugin in cni_rdma.py makes it. Where the kernel
has no RDMA subsystem, the device is described by files (tree.py) and its netdev is the machine's NIC.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.guest import kernel, tree, verbs
from tests.lab.guest.conftest import DAEMON, NRI_SOCKET, RESULTS, STATE
from tests.lab.guest.process import Server
from tests.lab.outcomes import OutcomeError
from tests.rig.control import ask_status
from tests.rig.cri import Cri
from tests.rig.deadline import wait_until

TREE_PREFIX = "tree.noderesource.dev"
IN_POD = "rxe1-cell"
ALONE = f"mode: exclusive, match: {{device: {IN_POD}.0}}"


@pytest.fixture
def exclusive(cri: Cri) -> Iterator[None]:
    with kernel.rdma_netns("exclusive"):
        yield


@pytest.mark.outcome("alone-soft")
def test_exclusive_when_shared_the_netdev_of_a_soft_device_stays(cri: Cri, daemon: Server, rdma_device: str) -> None:
    """It would be gone for the host too: the refusal comes before anything moves."""
    before = kernel.NodeState.take()
    try:
        with verbs.pod(cri, "soft", verbs.asks(f"mode: exclusive, match: {{device: {rdma_device}}}")):
            pass
    finally:
        assert before.differences_to(kernel.NodeState.take()) == []


@pytest.mark.outcome("alone-when-shared")
def test_exclusive_when_shared_the_pod_has_it_alone_and_the_host_still_sees_it(cri: Cri, daemon: Server) -> None:
    with verbs.pod(cri, IN_POD, verbs.asks(ALONE)) as sandbox:
        shown = cri.exec(verbs.start(cri, sandbox, "main"), ["ibv_devinfo", "-d", f"{IN_POD}.0"])
        assert shown.exit_code == 0, shown.stderr
        assert f"{IN_POD}.0" in kernel.rdma_devices()
        assert isolation_of(sandbox.id) == "soft"
        with pytest.raises(OutcomeError) as caught, verbs.pod(cri, "second", verbs.asks(ALONE)):
            pass
        assert caught.value.outcome == "DEVICE-IN-USE"


@pytest.mark.outcome("isolated-when-shared")
def test_exclusive_when_shared_hard_isolation_is_refused(cri: Cri, daemon: Server) -> None:
    with verbs.pod(cri, IN_POD, verbs.asks(f"{ALONE}, isolation: hard")):
        pass


@pytest.mark.outcome("alone-elsewhere")
def test_exclusive_when_shared_a_device_whose_netdev_is_another_pods_is_refused(cri: Cri, daemon: Server) -> None:
    with verbs.pod(cri, IN_POD, {}), verbs.pod(cri, "second", verbs.asks(ALONE)):
        pass


@pytest.mark.outcome("alone-stock")
def test_exclusive_when_exclusive_a_driver_that_cannot_move_is_refused(
    cri: Cri, daemon: Server, exclusive: None
) -> None:
    with verbs.pod(cri, IN_POD, verbs.asks(ALONE)):
        pass


@pytest.mark.outcome("isolated-when-exclusive")
def test_exclusive_when_exclusive_hard_isolation_is_served(cri: Cri, daemon: Server, rdma_device: str) -> None:
    with (
        kernel.labs_rxe(rdma_device),
        kernel.rdma_netns("exclusive"),
        verbs.pod(cri, IN_POD, verbs.asks(f"{ALONE}, isolation: hard")) as sandbox,
    ):
        verbs.start(cri, sandbox, "main")  # not before it is attached
        assert f"{IN_POD}.0" not in kernel.rdma_devices()
        assert isolation_of(sandbox.id) == "hard"


@contextmanager
def bound(path: Path | str, at: Path) -> Iterator[None]:
    """The runtime's socket in another folder, where a daemon's lock lies beside it that the first daemon does not see:
    two daemons answer one runtime here. A link would not do: the daemon follows it."""
    at.touch()
    subprocess.run(["mount", "--bind", str(path), str(at)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True)


@pytest.fixture
def described(cri: Cri, daemon: Server, rdma_device: str, tmp_path: Path) -> Iterator[str]:
    """The NIC on a kernel without RDMA, and a second daemon that reads a tree; it has annotations of its own."""
    netdev = kernel.netdev_of(rdma_device)
    with kernel.no_rdma(rdma_device):
        tree.write(netdev, tmp_path / "sys")
        state, socket = Path("/run/nri-rdma-tree"), tmp_path / "nri.sock"
        command = (
            *(word for word in DAEMON if str(STATE) not in word and word not in {"--state-dir", "--control-socket"}),
            *("--nri-socket", str(socket), "--sysfs-root", str(tmp_path / "sys"), "--state-dir", str(state)),
            *("--plugin-name", "tree", "--plugin-index", "91", "--annotation-prefix", TREE_PREFIX),
        )
        with bound(NRI_SOCKET, socket), Server(command, RESULTS / "nri-rdma-tree.log") as server:
            wait_until(lambda: server.has_logged("synchronized"), "the second daemon to be registered", seconds=60)
            yield netdev


@pytest.mark.outcome("alone-without-rdma")
def test_exclusive_when_none_the_netdev_moves_and_the_files_tell_the_nodes(cri: Cri, described: str) -> None:
    before = kernel.NodeState.take()
    asks = {f"{TREE_PREFIX}/pod": "{mode: exclusive, interface: {name: rail0}}"}
    with verbs.pod(cri, "described", asks) as sandbox:
        container = verbs.start(cri, sandbox, "main")
        assert described not in links()
        assert cri.exec(container, ["cat", "/sys/class/net/rail0/address"]).stdout.strip() == before.mac_of(described)
        assert numbers(cri.exec(container, ["stat", "-c", "%t:%T", "/dev/infiniband/uverbs0"]).stdout) == tree.NUMBER
    wait_until(lambda: not before.differences_to(kernel.NodeState.take()), "the host to be as before", seconds=10)


@pytest.mark.outcome("shared-without-rdma")
def test_shared_when_none_the_files_tell_the_nodes(cri: Cri, described: str) -> None:
    with verbs.pod(cri, "described", {f"{TREE_PREFIX}/pod": "{mode: shared}"}) as sandbox:
        container = verbs.start(cri, sandbox, "main")
        assert numbers(cri.exec(container, ["stat", "-c", "%t:%T", "/dev/infiniband/uverbs0"]).stdout) == tree.NUMBER
        assert described in links()


@pytest.mark.outcome("real-without-rdma")
def test_when_none_a_real_node_has_nothing_to_give(cri: Cri, daemon: Server, rdma_device: str) -> None:
    with kernel.no_rdma(rdma_device), verbs.pod(cri, "nothing", verbs.asks("mode: shared")):
        pass


def isolation_of(sandbox_id: str) -> str:
    """What the daemon says."""
    (found,) = [item for item in ask_status(STATE / "control.sock")["sandboxes"] if item["id"] == sandbox_id]
    return str(found["isolation"])


def links() -> set[str]:
    """The names of the host's links."""
    shown = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True)
    return {link["ifname"] for link in json.loads(shown.stdout)}


def numbers(text: str) -> tuple[int, int]:
    """`e7:fa` of stat."""
    major, minor = text.strip().split(":")
    return int(major, 16), int(minor, 16)

"""Devices by their ids, and shares, on a real containerd: what a kubelet allocates is what the container has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nri_rdma.host.containerd.cdi_setting import reads_cdi_specs
from tests.rig.containerd import Containerd
from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.device_manager import Admitted, FakeDeviceManager
from tests.rig.expect import described_mac, look
from tests.rig.fabric import Fabric
from tests.rig.guard import HOOK
from tests.rig.kubelet import PATIENT, FakeKubelet, Given
from tests.rig.runtime import Runtime
from tests.runtime.test_cdi import WithNodes, make
from tests.unit.commands.cli.program import nri_rdma

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

NIC, ALONE, SHARE = "rdma/nic", "rdma/alone", "rdma/hca_shared"
CONFIG = f"""
guard_hook = "{HOOK}"

[pools.nics]
select = {{ device = ["mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5"] }}
modes = ["shared"]
door = "resource"
resource = "{NIC}"
gives = "device"

[pools.alone]
select = {{ device = ["mlx5_6", "mlx5_7"] }}
modes = ["exclusive"]
door = "resource"
resource = "{ALONE}"
gives = "device"

[pools.hcas]
select = {{ device = ["mlx5_2", "mlx5_3"] }}
modes = ["shared"]
door = "resource"
resource = "{SHARE}"
shares = 8
"""


@dataclass
class Machine:
    """A daemon on the node "eight", with a kubelet."""

    daemon: Daemon
    plugins: FakeDeviceManager
    kubelet: FakeKubelet
    cri: Cri
    socket: Path
    """The runtime's."""

    def start(self, name: str, resource: str, admitted: Admitted) -> tuple[Sandbox, Container]:
        """A pod with a container that was allocated this."""
        self.kubelet.add_pod("default", name, Given(name="main", resources={resource: admitted.ids}))
        pod = self.cri.run_pod(name)
        return pod, self.container(pod, admitted)

    def container(self, pod: Sandbox, admitted: Admitted, name: str = "main") -> Container:
        """A container with what the plugin brings to it."""
        made = self.cri.create_container(
            pod,
            name,
            annotations=admitted.annotations,
            cdi_devices=admitted.cdi_devices,
            devices=admitted.nodes,
        )
        self.cri.start(made)
        return made


@contextmanager
def machine(runtime: Runtime, node: Fabric, folder: Path) -> Iterator[Machine]:
    """The daemon's pools are registered; what a test leaves of pods is removed after it."""
    config = folder / "config.toml"
    config.write_text(CONFIG)
    flags = ("--config", str(config), "--device-plugin-dir", str(folder / "plugins"), *PATIENT)
    with (
        FakeDeviceManager(folder / "plugins") as plugins,
        FakeKubelet() as kubelet,
        Daemon(runtime, node, extra=flags, kubelet=kubelet.socket) as daemon,
    ):
        wait_until(
            lambda: set(plugins.plugins) == {NIC, ALONE, SHARE}, lambda: f"the pools; its log:\n{daemon.log}", 15
        )
        yield Machine(daemon, plugins, kubelet, runtime.cri, runtime.cri_address)
        for pod in runtime.cri.pods():
            runtime.cri.delete_pod(pod)


@pytest.fixture
def eight(runtime: Runtime, node: Fabric, tmp_path: Path) -> Iterator[Machine]:
    with machine(runtime, node, tmp_path) as made:
        yield made


def test_a_container_has_exactly_the_devices_that_it_was_allocated_and_they_are_of_one_numa_node(
    host_equal: None, eight: Machine
) -> None:
    admitted = eight.plugins.admit(NIC, 2, frozenset({1}))
    assert admitted.nodes == ()
    pod, container = eight.start("two", NIC, admitted)
    seen = look(eight.cri, container)
    assert set(seen.nodes) == {"uverbs4", "uverbs5", "rdma_cm"}
    assert seen.env["RDMA_DEVICES_NIC"] == "mlx5_4,mlx5_5"
    beside = eight.cri.run_container(pod, "beside")
    assert look(eight.cri, beside).nodes == {}


def test_the_netdev_of_a_device_that_a_pod_has_alone_comes_with_it_and_goes_home(
    host_equal: None, eight: Machine, node: Fabric
) -> None:
    admitted = eight.plugins.admit(ALONE, 1)
    _pod, container = eight.start("alone", ALONE, admitted)
    seen = look(eight.cri, container)
    assert set(seen.nodes) == {"uverbs6", "rdma_cm"}
    assert described_mac(node, "rail6") in seen.macs.values()
    assert eight.plugins.plugins[ALONE].devices[admitted.ids[0]] == "Healthy"


def test_an_id_that_a_pod_has_is_refused_to_another_one_also_by_the_next_daemon(
    host_equal: None, eight: Machine
) -> None:
    """As by a kubelet that has lost its checkpoint."""
    for resource in (NIC, ALONE):
        admitted = eight.plugins.admit(resource, 1)
        eight.start(f"first-{resource[-3:]}", resource, admitted)
        eight.daemon.kill()
        eight.plugins.plugins.clear()
        eight.daemon.start()
        wait_until(lambda: set(eight.plugins.plugins) == {NIC, ALONE, SHARE}, "the pools")
        again = eight.plugins.give(resource, *admitted.ids)
        with pytest.raises(CriError, match=r"DEVICE-IN-USE: mlx5_\d is held by another pod"):
            eight.start(f"second-{resource[-3:]}", resource, again)


def test_a_container_that_comes_without_the_guard_although_the_runtime_reads_cdi_specs_is_refused(
    host_equal: None, eight: Machine
) -> None:
    admitted = eight.plugins.admit(NIC, 1)
    assert admitted.cdi_devices == ("shares.rdma.noderesource.dev/pool=nics",)
    bare = Admitted(ids=admitted.ids, nodes=(), annotations=admitted.annotations, cdi_devices=())
    with pytest.raises(CriError, match="GUARD-MISSING: container main has shares of rdma/nic without the guard"):
        eight.start("bare", NIC, bare)


# Without CDI


@pytest.fixture
def without_cdi(runtime: Runtime, node: Fabric, tmp_path: Path) -> Iterator[Machine]:
    """A containerd of this release that does not read CDI specs, with the node's devices in its /dev."""
    if runtime.release.always_reads_cdi:
        pytest.skip(f"{runtime.release.name} always reads CDI specs")
    containerd = WithNodes(tmp_path / "containerd", release=runtime.release, reads_cdi=False)
    containerd.nodes.mkdir()
    for device in node.node.char_devices:
        make(containerd.nodes / device.name, device.major, device.minor)
    with containerd, machine(containerd, node, tmp_path) as made:
        yield made


def test_without_cdi_devices_come_from_the_kubelet_and_shares_from_create_container(
    host_equal: None, without_cdi: Machine
) -> None:
    eight = without_cdi
    admitted = eight.plugins.admit(NIC, 1)
    assert set(admitted.nodes) == {"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}
    assert admitted.cdi_devices == ()
    seen = look(eight.cri, eight.start("one", NIC, admitted)[1])
    assert set(seen.nodes) == {"uverbs0", "rdma_cm"}
    assert seen.env["RDMA_DEVICES_NIC"] == "mlx5_0"
    share = eight.plugins.give(SHARE, "hcas-0")
    assert (share.nodes, share.cdi_devices) == ((), ())
    seen = look(eight.cri, eight.start("share", SHARE, share)[1])
    assert set(seen.nodes) == {"uverbs2", "rdma_cm"}
    told = {pool["name"]: pool for pool in eight.daemon.status()["pools"]}
    assert {pool["guarding"] for pool in told.values()} == {
        "the runtime does not read CDI specs (containerd: enable_cdi = false)"
    }


def test_the_doctor_names_the_setting(without_cdi: Machine, tmp_path: Path) -> None:
    done = nri_rdma("doctor", "--containerd-socket", without_cdi.socket, "--config", tmp_path / "config.toml")
    assert "does not read CDI specs (enable_cdi = false)" in " ".join(done.stdout.split())


@pytest.mark.parametrize("is_on", [True, False])
def test_containerd_says_whether_it_reads_cdi_specs(runtime: Runtime, tmp_path: Path, is_on: bool) -> None:
    if runtime.release.is_crio:
        pytest.skip("only containerd is asked")
    if runtime.release.always_reads_cdi and not is_on:
        pytest.skip(f"{runtime.release.name} always reads CDI specs")
    with Containerd(tmp_path, release=runtime.release, reads_cdi=is_on) as containerd:
        assert reads_cdi_specs(containerd.cri_address) is is_on

"""The doctor on devices, their nodes and pools."""

import os
import stat
from dataclasses import replace

import pytest

from nri_rdma.commands.doctor import hardware, kernel
from nri_rdma.commands.doctor.finding import not_applicable
from nri_rdma.doors.control.node_document import node_document
from nri_rdma.errors import ErrorCode, InventoryError
from nri_rdma.model.capacity import RdmaCapacity
from nri_rdma.model.device import CharKind, Node
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode, RdmaLimits
from nri_rdma.model.selector import Selector
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, WARNING, Bench
from tests.unit.doors.deviceplugin.pools import pool
from tests.unit.host.pyverbs import python_with
from tests.unit.model.hardware import nic, tied
from tests.unit.rigs.inside_daemon import InsideDaemon


def test_devices_are_counted_with_what_the_host_uses(bench: Bench) -> None:
    assert bench.finds(hardware.devices).found == "8 RDMA devices, none in use by the host"
    assert isinstance(bench.node, Node)
    first, *others = bench.node.devices
    bench.change_node(devices=(replace(first, in_use=("rail0 carries a default route",)), *others))
    found = bench.finds(hardware.devices)
    assert (found.result, "mlx5_0 (rail0 carries a default route)" in found.found) == (OK, True)
    bench.change_node(devices=(replace(first, in_use=("busy",)),))
    assert bench.finds(hardware.devices).result is WARNING


def test_devices_that_pods_have_are_counted(bench: Bench, daemon: InsideDaemon) -> None:
    bench.settings = daemon.settings
    assert bench.finds(hardware.devices).found == "8 RDMA devices, none in use by the host"
    daemon.start_pod("one", {"rdma.noderesource.dev": "2"})
    assert bench.finds(hardware.devices).found.endswith("none in use by the host; pods or containers have 2")


def test_devices_that_can_only_be_shared_are_named_and_no_good_to_a_pool_that_does_not_share(bench: Bench) -> None:
    bench.change_node(devices=(tied(nic(0)),))
    found = bench.finds(hardware.devices)
    assert (found.result, found.found) == (
        OK,
        "1 RDMA device, none in use by the host; can only be shared: mlx5_0 (eth0 is used by the multipath route"
        " 10.9.0.0/16)",
    )
    for modes, result in (((Mode.EXCLUSIVE, Mode.SHARED), OK), ((Mode.EXCLUSIVE,), WARNING)):
        bench.settings = replace(bench.settings, allow_default_pool=False, pools=(Pool(name="rails", modes=modes),))
        assert bench.finds(hardware.pools).result is result


def test_no_device_is_a_problem_and_what_needs_devices_is_not_applicable(bench: Bench) -> None:
    bench.change_node(devices=())
    assert bench.finds(hardware.devices).result is PROBLEM
    assert bench.finds(hardware.device_nodes).result is NA
    assert bench.finds(hardware.pools).result is NA


def test_hardware_that_cannot_be_read_is_one_problem(bench: Bench) -> None:
    bench.node = InventoryError(ErrorCode.INVENTORY, "there is no sysfs", where="/nowhere", hint="mount it")
    found = bench.finds(hardware.devices)
    assert (found.result, found.found, found.fix) == (PROBLEM, "there is no sysfs (/nowhere)", "mount it")
    assert {bench.finds(check).result for check in (hardware.device_nodes, hardware.pools, kernel.rdma_netns)} == {NA}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: device nodes")
def test_device_nodes_that_are_there_with_their_numbers_are_fine(bench: Bench) -> None:
    assert isinstance(bench.node, Node)
    assert bench.node.rdma_cm is not None
    folder = bench.dev / "infiniband"
    folder.mkdir(parents=True)
    chars = [bench.node.rdma_cm, *(char for device in bench.node.devices for char in device.char_devices)]
    for char in chars:
        os.mknod(folder / char.path.rpartition("/")[2], stat.S_IFCHR | 0o666, os.makedev(char.major, char.minor))
    found = bench.finds(hardware.device_nodes)
    assert (found.result, found.found) == (OK, f"{len(chars)} nodes in {folder}")
    (folder / "uverbs0").unlink()
    os.mknod(folder / "uverbs0", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert "uverbs0 is not 231:192" in bench.finds(hardware.device_nodes).found


def test_device_nodes_that_are_not_there_are_a_warning(bench: Bench) -> None:
    bench.write("dev/infiniband/uverbs1", "")
    found = bench.finds(hardware.device_nodes)
    assert found.result is WARNING
    assert "uverbs0: No such file or directory" in found.found
    assert "uverbs1 is no character device" in found.found


def test_a_missing_kernel_module_is_a_problem_with_its_modprobe(bench: Bench) -> None:
    assert isinstance(bench.node, Node)
    first, *others = bench.node.devices
    bench.change_node(rdma_cm=None)
    assert (bench.finds(hardware.device_nodes).result, bench.finds(hardware.device_nodes).fix) == (
        PROBLEM,
        "modprobe rdma_ucm",
    )
    chars = tuple(char for char in first.char_devices if char.kind is not CharKind.UVERBS)
    bench.change_node(devices=(replace(first, char_devices=chars), *others))
    found = bench.finds(hardware.device_nodes)
    assert (found.result, found.fix, "mlx5_0" in found.found) == (PROBLEM, "modprobe ib_uverbs", True)


def test_pools_that_have_devices_are_listed(bench: Bench) -> None:
    found = bench.finds(hardware.pools)
    assert (found.result, found.found.startswith("default (shared, exclusive): mlx5_0, mlx5_1")) == (OK, True)


def test_an_empty_pool_is_a_warning_and_a_device_of_two_pools_a_problem(bench: Bench) -> None:
    def pool(name: str, *devices: str) -> Pool:
        return Pool(name=name, modes=(Mode.SHARED,), select=(Selector(device=devices),))

    bench.settings = replace(bench.settings, allow_default_pool=False, pools=(pool("a", "mlx5_0"), pool("b", "mlx9_9")))
    found = bench.finds(hardware.pools)
    assert (found.result, "No device is available in b" in found.found) == (WARNING, True)
    bench.settings = replace(bench.settings, pools=(pool("a", "mlx5_0"), pool("b", "mlx5_0")))
    found = bench.finds(hardware.pools)
    assert (found.result, "mlx5_0 by a and b" in found.found) == (PROBLEM, True)


def test_shares_without_limits_are_a_warning_with_the_reason(bench: Bench) -> None:
    assert bench.finds(hardware.share_limits) == not_applicable("share limits", "no pool has shares")
    bench.change_node(devices=(nic(0), nic(1)), rdma_cgroup=True)
    python = python_with(bench.folder / "python", {"mlx5_0": 32767})
    bench.settings = replace(bench.settings, allow_default_pool=False, pools=(pool(8),), verbs_python=python)
    found = bench.finds(hardware.share_limits)
    assert (found.result, found.found) == (
        WARNING,
        "a share of pool hcas has no limits (Failed to open device mlx5_1. Errno: 19), on mlx5_1; a share of pool hcas"
        " has hca_handle=204 hca_object=6553 (32767 ah among 4 shares and the host), on mlx5_0. A container may take"
        " all that a device has",
    )
    written = replace(pool(8), limits=RdmaLimits(hca_handles=4, hca_objects=400))
    bench.settings = replace(bench.settings, pools=(written,))
    found = bench.finds(hardware.share_limits)
    assert (found.result, found.found) == (
        OK,
        "a share of pool hcas has hca_handle=4 hca_object=400 (as the pool says), on mlx5_0, mlx5_1",
    )


def test_the_daemon_s_word_about_capacities_counts_where_there_is_one(bench: Bench) -> None:
    bench.change_node(devices=(nic(0),), rdma_cgroup=True)
    assert isinstance(bench.node, Node)
    bench.settings = replace(bench.settings, pools=(pool(4),), verbs_python=None)
    known = replace(bench.node, capacities={bench.node.devices[0].id: RdmaCapacity(qp=6000, ah=9000)})
    machine = bench.machine
    machine.__dict__["daemon"] = node_document(known)  # as its cached property keeps what a daemon answered
    found = hardware.share_limits(machine)
    assert (found.result, "6000 qp among 4 shares and the host" in found.found) == (OK, True)

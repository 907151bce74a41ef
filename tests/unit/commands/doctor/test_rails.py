"""The doctor on what RDMA devices lack before a pod has them: a GUID, a GID of RoCE v2, and to be like their equals."""

from dataclasses import replace

import pytest

from nri_rdma.commands.common.local_node import read_local_node
from nri_rdma.commands.doctor import rails
from nri_rdma.errors import ErrorCode, InventoryError
from tests.rig import node as nodes
from tests.rig.systree import build_tree
from tests.unit.commands.doctor.bench import NA, OK, WARNING, Bench

ZERO_GUID = "0000:0000:0000:0000"


def _show(bench: Bench, node: nodes.Node) -> None:
    """Have the machine show this node."""
    build_tree(node, bench.folder / "sys")
    bench.settings = replace(bench.settings, sysfs_root=bench.folder / "sys", proc_root=bench.proc)
    bench.node = read_local_node(bench.settings).node


def _infiniband_vfs(*guids: str) -> nodes.Node:
    """The virtual functions of the node "vf8", as InfiniBand has them."""
    made = nodes.load("vf8")
    ports = (replace(made.rdma[0].ports[0], link_layer="InfiniBand", gids=()),)
    functions = {it.address for it in made.functions if it.physfn}
    virtual = [device for device in made.rdma if device.function in functions]
    changed = [replace(it, node_guid=guid, ports=ports) for it, guid in zip(virtual, guids, strict=False)]
    return replace(made, rdma=tuple(changed))


def test_virtual_functions_of_infiniband_without_a_guid_are_a_warning_with_the_command(bench: Bench) -> None:
    _show(bench, _infiniband_vfs(ZERO_GUID, "0c42:a103:0065:a001"))
    found = bench.finds(rails.guids)
    assert (found.result, found.found) == (
        WARNING,
        "the node GUID of mlx5_1 is zero: no subnet manager sets its port up, which stays DOWN",
    )
    assert "vf 0 node_guid GUID" in found.fix
    assert "port_guid" in found.fix


def test_devices_with_guids_are_fine_and_those_of_ethernet_need_none(bench: Bench) -> None:
    assert bench.finds(rails.guids).result is NA
    _show(bench, _infiniband_vfs("0c42:a103:0065:a000", "0c42:a103:0065:a001"))
    found = bench.finds(rails.guids)
    assert (found.result, found.found) == (OK, "2 devices of InfiniBand have GUIDs")


def test_in_a_virtual_machine_the_one_that_made_the_function_has_to_set_its_guid(bench: Bench) -> None:
    made = nodes.load("ib2")
    first, second = made.rdma
    _show(bench, replace(made, rdma=(first, replace(second, node_guid=ZERO_GUID))))
    found = bench.finds(rails.guids)
    assert (found.result, found.found.startswith(f"the node GUID of {second.name} is zero")) == (WARNING, True)
    assert found.fix.startswith("where the virtual functions are made")


@pytest.mark.parametrize(
    ("types", "words"),
    [(("IB/RoCE v1",), "mlx5_1 port 1 has IB/RoCE v1 only"), ((), "mlx5_1 port 1 has no GID")],
)
def test_a_port_without_a_gid_of_roce_v2_is_a_warning(bench: Bench, types: tuple[str, ...], words: str) -> None:
    made = nodes.load("switch")
    first, second = made.rdma
    (port,) = second.ports
    gids = tuple(gid for gid in port.gids if gid.gid_type in types)
    unused = nodes.Gid(index=9, gid=":".join(["0000"] * 8), gid_type=" ")
    _show(bench, replace(made, rdma=(first, replace(second, ports=(replace(port, gids=(*gids, unused)),)))))
    found = bench.finds(rails.roce_v2)
    assert (found.result, found.found.startswith(f"{words}: ")) == (WARNING, True)
    assert "rail1" in found.fix


def test_ports_with_roce_v2_are_fine_and_a_node_without_roce_has_nothing_to_check(bench: Bench) -> None:
    _show(bench, nodes.load("switch"))
    found = bench.finds(rails.roce_v2)
    assert (found.result, found.found) == (OK, "2 ports have GIDs of RoCE v2")


def test_devices_of_infiniband_have_no_types_of_roce(bench: Bench) -> None:
    _show(bench, nodes.load("ib2"))
    assert bench.finds(rails.roce_v2).result is NA


def test_a_device_whose_netdev_is_in_a_pod_is_not_looked_at(bench: Bench) -> None:
    _show(bench, nodes.load("switch"))
    bench.change_node(devices=tuple(replace(it, netdevs=()) for it in bench.machine.node[0].devices))  # type: ignore[index]
    assert bench.finds(rails.roce_v2).result is NA
    assert "MTU" not in bench.finds(rails.equal_rails).found


def test_equal_devices_with_another_mtu_or_firmware_are_named(bench: Bench) -> None:
    made = nodes.load("eight")
    devices = [replace(it, fw_ver="28.39.1002") if it.name == "mlx5_2" else it for it in made.rdma]
    netdevs = [replace(it, mtu=1500 if it.name == "rail5" else 9000) for it in made.netdevs]
    _show(bench, replace(made, rdma=tuple(devices), netdevs=tuple(netdevs)))
    found = bench.finds(rails.equal_rails)
    assert (found.result, found.found) == (
        WARNING,
        "8 equal devices (15b3:1021, 400 Gb/s) differ in MTU: 1500 on mlx5_5, 9000 on the others; 8 equal devices"
        " (15b3:1021, 400 Gb/s) differ in firmware: 28.39.1002 on mlx5_2, 28.43.1014 on the others",
    )
    assert "ip link set dev NETDEV mtu" in found.fix
    assert "mlxfwmanager" in found.fix


def test_two_devices_that_differ_are_both_named(bench: Bench) -> None:
    made = nodes.load("switch")
    first, second = made.netdevs
    _show(bench, replace(made, netdevs=(first, replace(second, mtu=1500))))
    assert "differ in MTU: 9000 on mlx5_0, 1500 on mlx5_1" in bench.finds(rails.equal_rails).found


def test_devices_that_are_as_their_equals_are_fine(bench: Bench) -> None:
    _show(bench, nodes.load("switch"))
    found = bench.finds(rails.equal_rails)
    assert (found.result, found.found) == (
        OK,
        "2 equal devices (15b3:1021, 400 Gb/s) have MTU 9000; 2 equal devices (15b3:1021, 400 Gb/s) have firmware"
        " 28.43.1014",
    )


def test_devices_of_another_kind_or_speed_are_no_equals(bench: Bench) -> None:
    made = nodes.load("switch")
    first, second = made.rdma
    slow = replace(second, fw_ver="1.0", ports=(replace(second.ports[0], rate="100 Gb/sec (4X EDR)"),))
    _show(bench, replace(made, rdma=(first, slow)))
    assert bench.finds(rails.equal_rails).result is NA


def test_hardware_that_cannot_be_read_has_nothing_to_check(bench: Bench) -> None:
    bench.node = InventoryError(ErrorCode.INVENTORY, "there is no sysfs", where="/nowhere", hint="mount it")
    assert {bench.finds(check).result for check in (rails.guids, rails.roce_v2, rails.equal_rails)} == {NA}

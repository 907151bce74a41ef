"""Hardware joined with the netdevs that are on the host now: which there are, and which the host uses itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.inventory import assemble, in_use_reasons
from nri_rdma.model.link import LinkState
from nri_rdma.model.nldev import RdmaNetdevs
from nri_rdma.sysfs.scan import scan
from tests.rig import node as description
from tests.rig.systree import build_tree

NONE: frozenset[int] = frozenset()


def _link(ifindex: int, name: str) -> LinkState:
    return LinkState(
        ifindex=ifindex,
        name=name,
        kind="",
        parent="",
        permanent_mac="",
        mac=f"02:00:00:00:00:{ifindex:02x}",
        mtu=9000,
        txqlen=1000,
        alias="",
        alt_names=(),
        up=True,
    )


@pytest.mark.parametrize("name", ["eight", "small", "ib2"])
def test_devices_have_the_netdevs_that_the_host_has(name: str, tmp_path: Path) -> None:
    node = description.load(name)
    build_tree(node, tmp_path)
    links = [_link(number, netdev.name) for number, netdev in enumerate(node.netdevs, start=50)]
    found = assemble(scan(tmp_path, tmp_path), links, NONE, (), rdma_cgroup=True)
    by_name = {link.name: link for link in links}
    for device, expected in zip(found.devices, node.rdma, strict=True):
        netdev = node.netdev_of(expected)
        assert netdev is not None
        (own,) = device.netdevs
        assert (own.name, own.ifindex, own.mac) == (
            netdev.name,
            by_name[netdev.name].ifindex,
            by_name[netdev.name].mac,
        )
        assert device.in_use == ()
    assert found.rdma_cgroup


def test_a_physical_function_with_virtual_ones_is_in_use_and_they_are_not(tmp_path: Path) -> None:
    build_tree(description.load("vf8"), tmp_path)
    found = assemble(scan(tmp_path, tmp_path), (), NONE, (), rdma_cgroup=False)
    assert {device.name: device.in_use for device in found.devices if device.in_use} == {
        "mlx5_0": ("mlx5_0 has 8 virtual functions",)
    }


def test_a_netdev_that_is_away_is_left_out(tmp_path: Path) -> None:
    build_tree(description.load("small"), tmp_path)
    found = assemble(scan(tmp_path, tmp_path), [_link(50, "soft1")], NONE, (), rdma_cgroup=False)
    assert [len(device.netdevs) for device in found.devices] == [0, 1]


def test_a_link_of_the_host_that_is_called_as_a_nic_in_a_pod_is_not_taken_for_it(tmp_path: Path) -> None:
    node = description.load("eight")
    build_tree(node, tmp_path)
    name = node.netdevs[0].name
    own = next(device for device in scan(tmp_path, tmp_path).devices if device.name == node.rdma[0].name)
    for parent, expected in (
        ("pci/0000:ff:1f.0", []),
        (f"pci/{own.pci}", [name]),
        ("", [name]),
        ("auxiliary/mlx5_core.sf.4", [name]),
    ):
        link = replace(_link(50, name), parent=parent)
        found = assemble(scan(tmp_path, tmp_path), [link], NONE, (), rdma_cgroup=True)
        assert [netdev.name for device in found.devices for netdev in device.netdevs] == expected


def test_where_the_kernel_knows_the_device_a_name_alone_says_nothing(tmp_path: Path) -> None:
    """A soft device's netdev in a pod was called like the host's NIC, which then was moved away in its stead."""
    build_tree(description.load("small"), tmp_path)
    found = scan(tmp_path, tmp_path)
    links = [_link(50, "soft0"), _link(51, "other")]
    for ifindexes, expected in (((), []), ((51,), ["other"]), ((50,), ["soft0"]), ((99,), [])):
        told = RdmaNetdevs(index=7, name="rxe0", node_guid="5054:00ff:fe00:2000", ifindexes=ifindexes)
        node = assemble(found, links, NONE, [told], rdma_cgroup=True)
        assert [netdev.name for netdev in node.devices[0].netdevs] == expected
        assert [device.kernel_index for device in node.devices] == [7, None]


def test_the_netdevs_of_its_function_are_the_devices_beside_what_the_kernel_says(tmp_path: Path) -> None:
    node = description.load("ib2")
    build_tree(node, tmp_path)
    device = scan(tmp_path, tmp_path).devices[0]
    name = node.netdevs[0].name
    told = RdmaNetdevs(index=7, name=device.name, node_guid=device.node_guid, ifindexes=())
    for parent, expected in ((f"pci/{device.pci}", [name]), ("pci/0000:ff:1f.0", []), ("", [])):
        links = [replace(_link(50, name), parent=parent)]
        found = assemble(scan(tmp_path, tmp_path), links, NONE, [told], rdma_cgroup=True)
        assert [netdev.name for netdev in found.devices[0].netdevs] == expected


def test_the_use_of_a_link_that_only_bears_the_name_is_not_the_devices(tmp_path: Path) -> None:
    node = description.load("eight")
    build_tree(node, tmp_path)
    link = replace(_link(50, node.netdevs[0].name), parent="pci/0000:ff:1f.0", master=9)
    found = assemble(scan(tmp_path, tmp_path), [link], NONE, (), rdma_cgroup=True)
    assert [device.in_use for device in found.devices] == [()] * len(found.devices)


RAIL = _link(5, "rail0")


@pytest.mark.parametrize(
    ("link", "others", "defaults", "reason"),
    [
        (replace(RAIL, master=9), [_link(9, "bond0")], NONE, "rail0 is enslaved to bond0"),
        (replace(RAIL, master=8), [], NONE, "rail0 is enslaved to ifindex 8"),
        (RAIL, [], frozenset({5}), "rail0 carries a default route"),
        (RAIL, [replace(_link(7, "rail0.5"), lower=5)], NONE, "rail0 has the child interface rail0.5"),
        (replace(RAIL, xdp=True), [], NONE, "rail0 has an XDP program attached"),
    ],
)
def test_what_the_host_uses_is_in_use(
    link: LinkState, others: list[LinkState], defaults: frozenset[int], reason: str
) -> None:
    assert in_use_reasons(link, [link, *others], defaults) == (reason,)


def test_an_address_or_a_neighbour_of_another_kind_is_no_use() -> None:
    others = [replace(_link(7, "vlan5"), lower=6), replace(_link(8, "other"), master=9), _link(6, "rail1")]
    assert in_use_reasons(RAIL, [RAIL, *others], frozenset({6})) == ()

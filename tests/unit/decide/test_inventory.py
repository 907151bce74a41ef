"""Hardware joined with the netdevs that are on the host now: which there are, and which the host uses itself."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from nri_rdma.decide.inventory import (
    assemble,
    in_use_reasons,
    ipoib_is_idle,
    kernel_use_reasons,
    matters,
    open_reasons,
    socket_reasons,
    watched,
)
from nri_rdma.host.sysfs.scan import scan
from nri_rdma.model.device import RdmaDevice, RdmaNetns
from nri_rdma.model.link import LinkState
from nri_rdma.model.network import RouteConfig
from nri_rdma.model.nldev import ObjectKind, RdmaNetdevs, RdmaObject
from nri_rdma.model.routing import Routing
from nri_rdma.model.usage import Address, Change, HostSocket, HostUse, Lifelines, Watched
from tests.rig import node as description
from tests.rig.systree import build_tree
from tests.unit.model.hardware import nic

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
    found = assemble(scan(tmp_path, tmp_path), HostUse(links=tuple(links)), None, rdma_cgroup=True)
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


def test_a_netdev_has_what_the_host_has_of_it(tmp_path: Path) -> None:
    build_tree(description.load("small"), tmp_path)
    link = replace(_link(50, "soft0"), kind="veth", alias="first")
    use = HostUse(links=(link,), networks={50: ("10.0.0.1/24",), 51: ("10.0.1.1/24",)})
    (netdev,) = assemble(scan(tmp_path, tmp_path), use, None, rdma_cgroup=True).devices[0].netdevs
    assert (netdev.kind, netdev.alias, netdev.addresses) == ("veth", "first", ("10.0.0.1/24",))


def test_a_physical_function_with_virtual_ones_is_in_use_and_they_are_not(tmp_path: Path) -> None:
    build_tree(description.load("vf8"), tmp_path)
    found = assemble(scan(tmp_path, tmp_path), HostUse(), None, rdma_cgroup=False)
    assert {device.name: device.in_use for device in found.devices if device.in_use} == {
        "mlx5_0": ("mlx5_0 has 8 virtual functions",)
    }


def test_a_netdev_that_is_away_is_left_out(tmp_path: Path) -> None:
    build_tree(description.load("small"), tmp_path)
    found = assemble(scan(tmp_path, tmp_path), HostUse(links=(_link(50, "soft1"),)), None, rdma_cgroup=False)
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
        found = assemble(scan(tmp_path, tmp_path), HostUse(links=(link,)), None, rdma_cgroup=True)
        assert [netdev.name for device in found.devices for netdev in device.netdevs] == expected


def test_where_the_kernel_knows_the_device_a_name_alone_says_nothing(tmp_path: Path) -> None:
    """A soft device's netdev in a pod was called like the host's NIC, which then was moved away in its stead."""
    build_tree(description.load("small"), tmp_path)
    found = scan(tmp_path, tmp_path)
    links = [_link(50, "soft0"), _link(51, "other")]
    for ifindexes, expected in (((), []), ((51,), ["other"]), ((50,), ["soft0"]), ((99,), [])):
        told = RdmaNetdevs(index=7, name="rxe0", node_guid="5054:00ff:fe00:2000", ifindexes=ifindexes)
        node = assemble(found, HostUse(links=tuple(links)), [told], rdma_cgroup=True)
        assert [netdev.name for netdev in node.devices[0].netdevs] == expected
        assert [device.kernel_index for device in node.devices] == [7, None]


def test_a_device_that_comes_or_goes_while_the_node_is_read_has_no_netdev_by_name(tmp_path: Path) -> None:
    """sysfs has it, and the kernel's list of RDMA devices not yet, or no more."""
    build_tree(description.load("small"), tmp_path)
    links = (_link(50, "soft0"), _link(51, "soft1"))
    node = assemble(scan(tmp_path, tmp_path), HostUse(links=links), [], rdma_cgroup=True, is_own_tree=True)
    assert [(device.netdevs, device.kernel_index) for device in node.devices] == [((), None)] * 2


@pytest.mark.parametrize(("rdma", "is_own_tree"), [([], False), (None, True), (None, False)])
def test_where_the_kernel_cannot_tell_of_a_device_its_netdev_is_known_by_name(
    rdma: list[RdmaNetdevs] | None, is_own_tree: bool, tmp_path: Path
) -> None:
    """A tree of another node, or a kernel without the subsystem."""
    build_tree(description.load("small"), tmp_path)
    links = (_link(50, "soft0"), _link(51, "soft1"))
    node = assemble(scan(tmp_path, tmp_path), HostUse(links=links), rdma, rdma_cgroup=True, is_own_tree=is_own_tree)
    assert [[netdev.name for netdev in device.netdevs] for device in node.devices] == [["soft0"], ["soft1"]]


def test_the_netdevs_of_its_function_are_the_devices_beside_what_the_kernel_says(tmp_path: Path) -> None:
    node = description.load("ib2")
    build_tree(node, tmp_path)
    device = scan(tmp_path, tmp_path).devices[0]
    name = node.netdevs[0].name
    told = RdmaNetdevs(index=7, name=device.name, node_guid=device.node_guid, ifindexes=())
    for parent, expected in ((f"pci/{device.pci}", [name]), ("pci/0000:ff:1f.0", []), ("", [])):
        links = (replace(_link(50, name), parent=parent),)
        found = assemble(scan(tmp_path, tmp_path), HostUse(links=links), [told], rdma_cgroup=True)
        assert [netdev.name for netdev in found.devices[0].netdevs] == expected


def test_the_use_of_a_link_that_only_bears_the_name_is_not_the_devices(tmp_path: Path) -> None:
    node = description.load("eight")
    build_tree(node, tmp_path)
    link = replace(_link(50, node.netdevs[0].name), parent="pci/0000:ff:1f.0", master=9)
    found = assemble(scan(tmp_path, tmp_path), HostUse(links=(link,)), None, rdma_cgroup=True)
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
    assert in_use_reasons(link, HostUse(links=(link, *others), default_route_links=defaults)) == (reason,)


def test_an_address_or_a_neighbour_of_another_kind_is_no_use() -> None:
    others = [replace(_link(7, "vlan5"), lower=6), replace(_link(8, "other"), master=9), _link(6, "rail1")]
    use = HostUse(links=(RAIL, *others), default_route_links=frozenset({6}))
    assert (in_use_reasons(RAIL, use), socket_reasons(RAIL, use)) == ((), ())


OWN, OTHER, V6 = ip_address("10.0.0.5"), ip_address("10.0.0.6"), ip_address("fd00::5")


def _use(*sockets: HostSocket, **fields: object) -> HostUse:
    """A host whose rail0 has two addresses."""
    use = HostUse(links=(RAIL,), addresses={RAIL.ifindex: frozenset({OWN, V6})}, sockets=sockets)
    return replace(use, **fields)  # type: ignore[arg-type] # the test's own keywords


def _socket(address: object, port: int = 4420, protocol: str = "tcp", ifindex: int = 0) -> HostSocket:
    return HostSocket(protocol=protocol, address=address, port=port, ifindex=ifindex)  # type: ignore[arg-type] # as above


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (_use(lifelines=Lifelines(node_ips=(OTHER, V6))), "rail0 has the node's address fd00::5"),
        (
            _use(lifelines=Lifelines(api_server=OTHER), api_server_links=frozenset({5})),
            "rail0 carries the route to the API server 10.0.0.6",
        ),
        (_use(links=(RAIL, replace(_link(9, "eth9"), master=5))), "rail0 is made of eth9"),
    ],
)
def test_what_the_node_lives_by_is_in_use(use: HostUse, reason: str) -> None:
    assert in_use_reasons(RAIL, use) == (reason,)


@pytest.mark.parametrize(
    ("sockets", "reason"),
    [
        ([_socket(OWN)], "rail0 has the address 10.0.0.5 of 1 host socket (tcp port 4420)"),
        ([_socket(V6, 53, "udp")] * 3, "rail0 has the address fd00::5 of 3 host sockets (udp port 53)"),
        (
            [_socket(OWN, port) for port in range(50, 53)],
            "rail0 has the address 10.0.0.5 of 3 host sockets (tcp port 50, tcp port 51, tcp port 52)",
        ),
        (
            [_socket(OWN, port) for port in range(50, 55)],
            "rail0 has the address 10.0.0.5 of 5 host sockets (tcp port 50, tcp port 51, tcp port 52 and 2 more)",
        ),
        ([_socket(None, 319, "udp", ifindex=5)], "rail0 has, bound to it, 1 host socket (udp port 319)"),
    ],
)
def test_a_socket_on_an_address_or_a_link_uses_it(sockets: list[HostSocket], reason: str) -> None:
    assert socket_reasons(RAIL, _use(*sockets)) == (reason,)


@pytest.mark.parametrize(
    "item",
    [
        _socket(None),  # listens on every address: it does not miss this one
        _socket(OTHER),
        _socket(None, 319, "udp", ifindex=6),
        _socket(OWN, ifindex=6),  # the same address on another link, which it is bound to
        _socket(OWN, 68, "udp", ifindex=5),  # a DHCP client's
        _socket(ip_address("fe80::1"), 546, "udp", ifindex=5),
    ],
)
def test_other_sockets_do_not_use_it(item: HostSocket) -> None:
    assert socket_reasons(RAIL, _use(item)) == ()


def _object(kind: ObjectKind, kernel_user: str = "", pid: int | None = None, process: str = "") -> RdmaObject:
    return RdmaObject(kind=kind, kernel_user=kernel_user, pid=pid, process=process)


def test_the_kernels_users_of_a_device_are_told_with_what_they_hold() -> None:
    held = [_object(kind, "nvme_rdma") for kind in (ObjectKind.QP, ObjectKind.MR, ObjectKind.MR, ObjectKind.CM_ID)]
    for rdma_netns in RdmaNetns:
        assert kernel_use_reasons(held, rdma_netns) == ("nvme_rdma uses it (cm_id, mr, qp)",)


@pytest.mark.parametrize("nobody", ["ib_core", "mlx5_ib", "rdma_rxe"])
def test_what_the_rdma_core_and_the_driver_hold_is_no_use(nobody: str) -> None:
    assert kernel_use_reasons([_object(ObjectKind.QP, nobody)], RdmaNetns.EXCLUSIVE) == ()


def test_ipoib_uses_a_device_only_where_that_would_move_without_it() -> None:
    held = [_object(ObjectKind.QP, "ib_ipoib")]
    assert kernel_use_reasons(held, RdmaNetns.SHARED) == ()
    assert kernel_use_reasons(held, RdmaNetns.EXCLUSIVE) == ("ib_ipoib uses it (qp)",)
    assert kernel_use_reasons(held, RdmaNetns.EXCLUSIVE, ipoib_is_idle=True) == ()


@pytest.mark.parametrize(("up", "addresses", "is_idle"), [(False, (), True), (True, (), False), (False, (OWN,), False)])
def test_ipoib_is_idle_while_its_netdev_is_down_and_has_no_address(
    up: bool, addresses: tuple[Address, ...], is_idle: bool
) -> None:
    """The module ib_ipoib holds a queue pair for each netdev as soon as it is loaded."""
    hca = nic(0)
    ib0 = replace(RAIL, kind="ipoib", parent=f"pci/{hca.pci}", up=up)
    assert ipoib_is_idle(hca, HostUse(links=(ib0,), addresses={RAIL.ifindex: frozenset(addresses)})) is is_idle
    assert not ipoib_is_idle(hca, HostUse(links=(replace(ib0, parent="pci/0000:ff:00.0"),)))
    assert not ipoib_is_idle(hca, HostUse())  # it is in some pod


def test_the_processes_that_have_a_device_open_are_told_once_each() -> None:
    contexts = [
        _object(ObjectKind.CTX, pid=300, process="ib_write_bw"),
        _object(ObjectKind.CTX, pid=300, process="ib_write_bw"),
        _object(ObjectKind.CTX, pid=200),
        _object(ObjectKind.CTX, pid=0),
        _object(ObjectKind.QP, pid=400),
    ]
    assert open_reasons(contexts) == (
        "process of another pid namespace has it open",
        "process 200 has it open",
        "process 300 (ib_write_bw) has it open",
    )


def test_who_holds_something_on_a_device_is_told_of_that_device(tmp_path: Path) -> None:
    build_tree(description.load("small"), tmp_path)
    found = scan(tmp_path, tmp_path)
    told = [
        RdmaNetdevs(index=number, name=device.name, node_guid=device.node_guid, ifindexes=())
        for number, device in enumerate(found.devices, start=3)
    ]
    holders = {
        3: [_object(ObjectKind.QP, "rpcrdma"), _object(ObjectKind.CTX, pid=7, process="opensm")],
        9: [_object(ObjectKind.QP, "nvme_rdma")],
    }
    first, second = assemble(found, HostUse(), told, holders, rdma_cgroup=True).devices
    assert first.in_use == ("rpcrdma uses it (qp)",)
    assert first.used_by_some == ("process 7 (opensm) has it open",)
    assert (second.in_use, second.used_by_some) == ((), ())
    first, _ = assemble(found, HostUse(), told, holders, rdma_cgroup=True, ignored={7}).devices
    assert (first.in_use, first.used_by_some) == (("rpcrdma uses it (qp)",), ())


def _lag(tmp_path: Path) -> Path:
    """A node whose RDMA device is one of two functions' bond: its GIDs name the bond, its function has one slave."""
    node = description.load("eight")
    (device,) = node.rdma[:1]
    slave = node.netdev_of(device)
    assert slave is not None
    gids = tuple(replace(gid, netdev="bond0") for gid in device.ports[0].gids)
    lag = replace(device, name="mlx5_bond_0", ports=(replace(device.ports[0], gids=gids),))
    bond = replace(slave, name="bond0", function="")
    netdevs = (bond, replace(slave, name="ens1f0np0"))
    build_tree(replace(node, rdma=(lag,), netdevs=netdevs), tmp_path)
    return tmp_path


@pytest.mark.parametrize("told_by", ["tree", "bond", "slave"])
def test_the_device_of_an_rdma_lag_is_in_use_whichever_netdev_the_kernel_names(told_by: str, tmp_path: Path) -> None:
    tree = _lag(tmp_path)
    found = scan(tree, tree)
    (device,) = found.devices
    links = (
        replace(_link(60, "bond0"), kind="bond"),
        replace(_link(61, "ens1f0np0"), parent=f"pci/{device.pci}", master=60),
        replace(_link(62, "ens1f1np1"), parent="pci/0000:ff:1f.1", master=60),
    )
    ifindexes = {"tree": (), "bond": (60,), "slave": (62,)}[told_by]
    told = [RdmaNetdevs(index=1, name=device.name, node_guid=device.node_guid, ifindexes=ifindexes)]
    (joined,) = assemble(found, HostUse(links=links), None if told_by == "tree" else told, rdma_cgroup=True).devices
    assert isinstance(joined, RdmaDevice)
    assert "ens1f0np0 is enslaved to bond0" in joined.in_use
    reasons = {"tree": "bond0 is made of", "bond": "bond0 is made of", "slave": "ens1f1np1 is enslaved to bond0"}
    assert any(reason.startswith(reasons[told_by]) for reason in joined.in_use), joined.in_use


_HERE, _ELSEWHERE = bytes((10, 7, 0, 1)), bytes((10, 7, 0, 2))
_FOLLOWED = Watched(
    ifindexes=frozenset({5}), names=frozenset({"rail0"}), addresses={5: frozenset({_HERE})}, tables=frozenset({101})
)


@pytest.mark.parametrize(
    ("change", "does"),
    [
        (Change(ifindexes=frozenset({5}), address=_HERE), False),
        (Change(ifindexes=frozenset({5}), address=_ELSEWHERE), True),
        (Change(ifindexes=frozenset({5})), True),
        (Change(ifindexes=frozenset({6}), address=_HERE), False),
        (Change(ifindexes=frozenset({6}), name="rail0"), True),
        (Change(ifindexes=frozenset({6}), is_physical=True), True),
        (Change(is_default_route=True), True),
        (Change(), False),
        (Change(rule_table=101), True),
        (Change(rule_table=0), True),
        (Change(rule_table=254), False),
    ],
    ids=[
        *("known address", "new address", "of it", "another's", "by name", "physical", "default route", "route"),
        *("rule to its table", "rule of VRFs", "another rule"),
    ],
)
def test_a_change_matters_that_may_make_another_node(change: Change, does: bool) -> None:
    assert matters(change, _FOLLOWED) is does


def test_a_rule_does_not_matter_where_no_default_route_is_in_a_table_of_its_own() -> None:
    """Some CNI plugins make rules for every pod."""
    assert not matters(Change(rule_table=0), replace(_FOLLOWED, tables=frozenset()))


def test_of_a_node_that_was_read_only_what_is_new_about_its_own_links_matters(tmp_path: Path) -> None:
    """A busy node has thousands of other links with addresses of their own."""
    build_tree(description.load("small"), tmp_path)
    found = scan(tmp_path, tmp_path)
    links = (_link(50, "soft0"), _link(60, "cali0"))
    aside = {50: (RouteConfig(destination=ip_network("0.0.0.0/0"), table=101),)}
    use = HostUse(
        links=links, routing=Routing(routes=aside), addresses={50: frozenset({OWN, V6}), 60: frozenset({OTHER})}
    )
    seen = watched(found, assemble(found, use, None, rdma_cgroup=True), use)
    assert (set(seen.ifindexes), set(seen.names)) == ({50}, {"soft0", "soft1"})
    assert seen.tables == {101}
    own, others = frozenset({50}), frozenset({60})
    assert not matters(Change(ifindexes=own, address=OWN.packed), seen)
    assert matters(Change(ifindexes=own, address=OTHER.packed), seen)
    assert not matters(Change(ifindexes=others, address=OTHER.packed), seen)
    assert not matters(Change(ifindexes=others, address=OWN.packed), seen)

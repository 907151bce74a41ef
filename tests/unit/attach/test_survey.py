"""What a fresh look at the host refuses before anything moves."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from nri_rdma.decide.placement import Placed
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import LinkLayer, RdmaNetns
from nri_rdma.model.nldev import ObjectKind, RdmaObject
from nri_rdma.model.pci import parse_pci_address
from nri_rdma.model.request import Isolation, Mode
from nri_rdma.model.usage import HostSocket
from tests.fakes.kernel import Address, Route, World
from tests.unit.attach.builders import POD_PATH
from tests.unit.attach.rdma_life import attach, begin, device_of
from tests.unit.rigs.attachments import SOON, Rig, add_rail, placed_on

CONTEXT = RdmaObject(kind=ObjectKind.CTX, kernel_user="", pid=4711)
MANAGEMENT = RdmaObject(kind=ObjectKind.QP, kernel_user="ib_core", pid=None)
STORAGE = RdmaObject(kind=ObjectKind.QP, kernel_user="nvme_rdma", pid=None)


def test_a_shared_device_is_refused_where_the_kernel_has_come_to_hide_it(rig: Rig, world: World) -> None:
    """The setting may change after the node was read."""
    assert refusal(rig, placed_on(world, "rail0", mode=Mode.SHARED)).code is ErrorCode.RDMA_NETNS


def test_a_shared_device_stays_and_needs_no_namespace(rig: Rig, world: World) -> None:
    world.rdma_netns = RdmaNetns.SHARED
    attach(rig, placed_on(world, "rail0", mode=Mode.SHARED))
    assert device_of(world).netns is world.host
    assert rig.sandboxes.held() == 0


DEFAULT_V4, DEFAULT_V6 = ip_network("0.0.0.0/0"), ip_network("::/0")


@pytest.mark.parametrize(
    ("links", "own"),
    [
        ((("eth0", (Route(to=DEFAULT_V4),)),), "eth0"),
        ((("net7", ()),), "net7"),
        ((("net1", ()), ("cilium0", (Route(to=DEFAULT_V4),))), "cilium0"),
        ((("net1", (Route(to=DEFAULT_V4, metric=100),)), ("eth0", (Route(to=DEFAULT_V4),))), "eth0"),
        ((("net1", (Route(to=DEFAULT_V4, table=101),)), ("eth0", (Route(to=DEFAULT_V6),))), "eth0"),
        ((("net1", ()), ("net2", ())), "net1"),
        ((), ""),
    ],
    ids=["one", "one without a route", "by its route", "by the metric", "table of its own", "no route", "none"],
)
def test_the_pods_own_interface_is_found_and_of_several_it_is_that_of_the_default_route(
    rig: Rig, world: World, links: tuple[tuple[str, tuple[Route, ...]], ...], own: str
) -> None:
    pod = world.namespace(POD_PATH)
    assert pod is not None
    world.add_link(pod, "lo", up=True)
    world.add_link(pod, "tunl0")
    for name, routes in links:
        world.add_link(pod, name, up=True).routes = list(routes)
    record = attach(rig, placed_on(world, "rail0")).now.record
    assert record is not None
    assert [item.pod_interface for item in record.attached] == [own]


def test_a_pod_on_the_hosts_network_is_refused_and_its_namespace_let_go(rig: Rig, world: World) -> None:
    world.remove_namespace(POD_PATH)
    world.host.paths.add(POD_PATH)
    placed, before = placed_on(world, "rail0"), world.host.descriptors
    assert refusal(rig, placed).code is ErrorCode.HOST_NETWORK
    assert world.host.descriptors == before


def test_a_daemon_that_may_change_no_link_refuses_before_it_begins(rig: Rig, world: World) -> None:
    world.may_change_links = False
    error = refusal(rig)
    assert error.code is ErrorCode.PRIVILEGE
    assert ("CAP_NET_ADMIN" in error.what, "add NET_ADMIN" in error.hint) == (True, True)
    assert rig.sandboxes.held() == 0


def test_a_daemon_that_may_change_no_link_gives_shared_devices_all_the_same(rig: Rig, world: World) -> None:
    world.may_change_links, world.rdma_netns = False, RdmaNetns.SHARED
    attach(rig, placed_on(world, "rail0", mode=Mode.SHARED))


def refusal(rig: Rig, placed: tuple[Placed, ...] | None = None) -> PlacementError:
    before = rig.world.snapshot()
    with pytest.raises(PlacementError) as caught:
        begin(rig, placed).attach_done.result(SOON)
    assert rig.world.snapshot() == before
    assert {span.name for span in rig.spans.recent()}.isdisjoint({"move-netdev", "move-rdma-device"})
    return caught.value


def test_isolation_is_refused_where_the_kernel_has_come_to_show_devices_to_all(rig: Rig, world: World) -> None:
    world.rdma_netns = RdmaNetns.SHARED
    (item,) = placed_on(world, "rail0")
    request = replace(item.admitted.request, isolation=Isolation.HARD)
    assert refusal(rig, (replace(item, admitted=replace(item.admitted, request=request)),)).code is (
        ErrorCode.RDMA_NETNS
    )


def test_a_driver_that_cannot_move_is_refused_before_anything_moves(rig: Rig, world: World) -> None:
    device_of(world).movable = False
    error = refusal(rig)
    assert error.code is ErrorCode.RDMA_NETNS
    assert "mlx5_rail0" in error.what


@pytest.mark.parametrize(("held", "words"), [(CONTEXT, "process 4711 has it open"), (STORAGE, "nvme_rdma uses it")])
def test_a_device_that_somebody_uses_is_refused(rig: Rig, world: World, held: RdmaObject, words: str) -> None:
    device_of(world).objects = (MANAGEMENT, held)
    error = refusal(rig)
    assert error.code is ErrorCode.DEVICE_IN_USE
    assert words in error.what


@pytest.mark.parametrize(
    ("mode", "held", "words"),
    [
        (Mode.EXCLUSIVE, CONTEXT, "process 4711 (ib_write_bw) has it open"),
        (Mode.EXCLUSIVE, STORAGE, "nvme_rdma uses it"),
        (Mode.SHARED, STORAGE, "nvme_rdma uses it"),
        (Mode.SHARED, CONTEXT, ""),  # another pod that shares it may have it open
    ],
)
def test_where_the_rdma_device_stays_its_users_count_too(
    rig: Rig, world: World, mode: Mode, held: RdmaObject, words: str
) -> None:
    """The netdev that a storage connection goes over would leave."""
    world.rdma_netns = RdmaNetns.SHARED
    device_of(world).objects = (MANAGEMENT, replace(held, process="ib_write_bw") if held is CONTEXT else held)
    (item,) = placed_on(world, "rail0", mode=mode)
    placed = (replace(item, devices=(replace(item.devices[0], kernel_index=device_of(world).index),)),)
    if words:
        error = refusal(rig, placed)
        assert error.code is ErrorCode.DEVICE_IN_USE
        assert words in error.what
    else:
        attach(rig, placed)


def test_a_device_that_another_pod_watches_may_be_open_by_that_pod(rig: Rig, world: World) -> None:
    world.rdma_netns = RdmaNetns.SHARED
    device_of(world).objects = (MANAGEMENT, CONTEXT)
    (item,) = placed_on(world, "rail0", mode=Mode.EXCLUSIVE)
    (device,) = item.devices
    known = replace(item, devices=(replace(device, kernel_index=device_of(world).index),))
    assert "process 4711 has it open" in refusal(rig, (known,)).what
    attach(rig, (replace(known, admitted=replace(known.admitted, is_watched=True)),))


@pytest.mark.parametrize("mode", list(Mode))
def test_a_socket_that_was_opened_since_the_inventory_was_read_keeps_the_device_from_leaving(
    rig: Rig, world: World, mode: Mode
) -> None:
    rail = next(iter(world.host.links.values()))
    rail.add_address(Address(interface=ip_interface("10.0.0.5/24")))
    world.sockets.append(HostSocket(protocol="tcp", address=ip_address("10.0.0.5"), port=4420))
    placed = placed_on(world, "rail0", mode=mode)
    if mode is Mode.EXCLUSIVE:
        assert "rail0 has the address 10.0.0.5 of 1 host socket (tcp port 4420)" in refusal(rig, placed).what
    else:
        world.rdma_netns = RdmaNetns.SHARED
        attach(rig, placed)


def test_what_the_rdma_core_holds_on_every_device_is_no_use(rig: Rig, world: World) -> None:
    device_of(world).objects = (MANAGEMENT,)
    attach(rig)


def test_a_device_that_is_not_the_one_of_the_inventory_is_refused(rig: Rig, world: World) -> None:
    device_of(world).node_guid = "dead:beef:0000:0001"
    assert refusal(rig).code is ErrorCode.INVENTORY


def test_a_second_device_that_cannot_move_keeps_the_first_from_moving(rig: Rig, world: World) -> None:
    add_rail(world, "rail1", physical=True)
    world.add_rdma("mlx5_rail1", movable=False)
    assert refusal(rig, placed_on(world, "rail0", "rail1")).code is ErrorCode.RDMA_NETNS


@pytest.mark.parametrize("is_up", [True, False])
def test_ipoib_uses_a_device_that_moves_only_while_its_netdev_is_up_or_has_an_address(
    rig: Rig, world: World, is_up: bool
) -> None:
    """As the decision has it, the netdev does not move: the kernel removes it."""
    device_of(world).objects = (MANAGEMENT, replace(STORAGE, kernel_user="ib_ipoib"))
    ib0 = next(iter(world.host.links.values()))
    ib0.kind, ib0.parent, ib0.up, ib0.addresses = "ipoib", "pci/0000:17:00.0", is_up, []
    (item,) = placed_on(world, "rail0")
    pci = parse_pci_address("0000:17:00.0")
    ib = replace(
        item.devices[0],
        netdevs=(),
        pci=pci,
        ports=tuple(replace(it, link_layer=LinkLayer.INFINIBAND) for it in item.devices[0].ports),
    )
    placed = (replace(item, devices=(ib,)),)
    if is_up:
        assert "ib_ipoib uses it (qp)" in refusal(rig, placed).what
    else:
        attach(rig, placed)

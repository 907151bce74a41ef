"""RDMA devices that move into a pod: what is refused first, what the pod gets, how they come home."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.news import look_at_all_again, node_removed
from nri_rdma.attach.rdma import issm_beside
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import AttachError, ErrorCode, PlacementError
from nri_rdma.model.device import CharDevice, CharKind, LinkLayer, Port, RdmaNetns
from nri_rdma.model.nldev import CharNumber, ObjectKind, RdmaObject
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import Isolation, Mode
from nri_rdma.model.usage import HostSocket
from tests.fakes.kernel import Address, FakeKernel, FaultyKernel, Rdma, World
from tests.unit.attach.builders import POD_PATH, make_device, make_placed, make_pod
from tests.unit.attach.rig import SOON, Rig, add_rail, await_taken_up, make_world, placed_on

CONTEXT = RdmaObject(kind=ObjectKind.CTX, kernel_user="", pid=4711, type=None)
MANAGEMENT = RdmaObject(kind=ObjectKind.QP, kernel_user="ib_core", pid=None, type=1)
STORAGE = RdmaObject(kind=ObjectKind.QP, kernel_user="nvme_rdma", pid=None, type=2)


@pytest.fixture
def world() -> World:
    """A host with a rail and its RDMA device, on a kernel that keeps each in one namespace."""
    world = make_world(physical=True)
    world.rdma_netns = RdmaNetns.EXCLUSIVE
    world.add_rdma("mlx5_rail0", parent="0000:17:00.0")
    return world


@pytest.fixture
def rig(world: World, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(state=tmp_path, world=world)
    yield rig
    rig.close()


def _begin(rig: Rig, placed: tuple[Placed, ...] | None = None) -> Attachment:
    return rig.sandboxes.begin(make_pod(), placed or placed_on(rig.world, "rail0"), None)


def _attached(rig: Rig, placed: tuple[Placed, ...] | None = None) -> Attachment:
    sandbox = _begin(rig, placed)
    sandbox.attach_done.result(SOON)
    return sandbox


def _end(rig: Rig) -> None:
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    done.result(SOON)


def _device(world: World) -> Rdma:
    (device,) = world.rdma
    return device


def test_the_rdma_device_goes_with_its_netdev_and_comes_home(rig: Rig, world: World) -> None:
    before = world.snapshot()
    _attached(rig)
    assert _device(world).netns is world.namespace(POD_PATH)
    _end(rig)
    assert world.snapshot() == before
    assert (rig.sandboxes.held(), world.held) == (0, 0)


def test_the_pod_gets_the_numbers_that_the_device_has_after_its_move(rig: Rig, world: World) -> None:
    old = _device(world).minor
    record = _attached(rig).record
    assert record is not None
    (node,) = record.attached[0].devices[0].device.char_devices
    assert (node.major, node.minor) == (231, _device(world).minor)
    assert node.minor != old
    assert node.path == f"/dev/infiniband/uverbs{node.minor - 192}"
    assert node.mode == 0o666


def test_a_device_with_issm_has_it_in_the_pod_too(rig: Rig, world: World) -> None:
    """The kernel does not tell its number: it follows from umad's."""
    (uverbs,) = make_device("mlx5_rail0", []).char_devices
    port = Port(number=1, link_layer=LinkLayer.INFINIBAND, state="ACTIVE", speed_gbps=400)
    nodes = tuple(replace(uverbs, kind=kind) for kind in (CharKind.ISSM, CharKind.UMAD, CharKind.UVERBS))
    device = replace(make_device("mlx5_rail0", []), char_devices=nodes, ports=(port,))
    record = _attached(rig, (make_placed((device,)),)).record
    assert record is not None
    number = _device(world).minor - 192
    assert [(it.path, it.minor) for it in record.attached[0].devices[0].device.char_devices] == [
        (f"/dev/infiniband/issm{number}", 64 + number),
        (f"/dev/infiniband/umad{number}", number),
        (f"/dev/infiniband/uverbs{number}", 192 + number),
    ]


def test_beyond_the_64th_port_nobody_says_which_issm_belongs_to_a_umad() -> None:
    last = CharNumber(name="umad63", abi=5, major=231, minor=63)
    assert issm_beside(last) == CharNumber(name="issm63", abi=5, major=231, minor=127)
    assert issm_beside(CharNumber(name="umad64", abi=5, major=239, minor=0)) is None


def test_on_the_way_back_the_rdma_device_is_first(rig: Rig) -> None:
    _attached(rig)
    _end(rig)
    undone = [span.name for span in rig.spans.recent() if span.name.startswith("undo ")]
    assert undone == ["undo move-rdma-device", "undo configure-netdev", "undo move-netdev"]


def test_a_device_without_a_netdev_moves_alone(rig: Rig, world: World) -> None:
    placed = (make_placed((make_device("mlx5_rail0", [], link_layer=LinkLayer.INFINIBAND),)),)
    _attached(rig, placed)
    assert _device(world).netns is not world.host
    _end(rig)
    assert _device(world).netns is world.host


@pytest.mark.parametrize("setting", [RdmaNetns.SHARED, RdmaNetns.NONE])
def test_where_the_kernel_shows_it_everywhere_the_rdma_device_stays(rig: Rig, world: World, setting: RdmaNetns) -> None:
    world.rdma_netns = setting
    record = _attached(rig).record
    assert record is not None
    assert record.plan.rdma_moves == ()
    assert record.plan.moves != ()


def test_a_shared_device_is_refused_where_the_kernel_has_come_to_hide_it(rig: Rig, world: World) -> None:
    """The setting may change after the node was read."""
    assert _refused(rig, placed_on(world, "rail0", mode=Mode.SHARED)).code is ErrorCode.RDMA_NETNS


def test_a_shared_device_stays_and_needs_no_namespace(rig: Rig, world: World) -> None:
    world.rdma_netns = RdmaNetns.SHARED
    _attached(rig, placed_on(world, "rail0", mode=Mode.SHARED))
    assert _device(world).netns is world.host
    assert rig.sandboxes.held() == 0


def _node(sandbox: Attachment) -> CharDevice:
    assert sandbox.record is not None
    (node,) = sandbox.record.attached[0].devices[0].device.char_devices
    return node


def _looked_again(sandbox: Attachment) -> None:
    assert sandbox.looked_again is not None
    sandbox.looked_again.result(SOON)


def test_a_node_that_the_kernel_took_away_is_looked_for_again(rig: Rig, world: World) -> None:
    """A driver that was loaded anew, or another move: the old number may be another device's by now."""
    sandbox = _attached(rig)
    old = _node(sandbox)
    _device(world).minor = world.new_minor()
    node_removed(rig.sandboxes, (old.major, old.minor), sequence=1)
    _looked_again(sandbox)
    assert _node(sandbox).minor == _device(world).minor != old.minor
    ((written,), _) = rig.journal.load()
    assert written.attached == (sandbox.record.attached if sandbox.record is not None else ())


def test_the_events_of_the_attachs_own_move_and_other_nodes_change_nothing(rig: Rig) -> None:
    sandbox = _attached(rig)
    node = _node(sandbox)
    sandbox.change(numbers_from=7)
    node_removed(rig.sandboxes, (node.major, node.minor), sequence=7)
    node_removed(rig.sandboxes, (node.major, node.minor + 1), sequence=8)
    assert sandbox.looked_again is None


def test_a_device_that_is_gone_is_told_and_found_when_it_is_back(rig: Rig, world: World) -> None:
    sandbox = _attached(rig)
    lost, world.rdma = world.rdma, []
    look_at_all_again(rig.sandboxes)
    with pytest.raises(AttachError):
        _looked_again(sandbox)
    world.rdma = lost
    rig.sandboxes.look_again(sandbox).result(SOON)


def test_a_device_that_the_pod_renamed_is_known_by_its_new_name_and_returned_under_the_old(
    rig: Rig, world: World
) -> None:
    before = world.snapshot()
    sandbox = _attached(rig)
    _device(world).name = "mine"
    rig.sandboxes.look_again(sandbox).result(SOON)
    assert sandbox.record is not None
    assert sandbox.record.device_names == "mine"
    _end(rig)
    assert world.snapshot() == before


def test_a_daemon_that_starts_looks_again_at_what_it_adopts(rig: Rig, world: World, tmp_path: Path) -> None:
    _attached(rig)
    rig.close()
    _device(world).minor = world.new_minor()
    second = Rig(state=tmp_path, world=world)
    second.sandboxes.recover(lambda _record: None)
    await_taken_up(second)
    sandbox = second.sandboxes.get("sandbox-1")
    assert sandbox is not None
    _looked_again(sandbox)
    assert _node(sandbox).minor == _device(world).minor
    second.close()


def _refused(rig: Rig, placed: tuple[Placed, ...] | None = None) -> PlacementError:
    before = rig.world.snapshot()
    with pytest.raises(PlacementError) as caught:
        _begin(rig, placed).attach_done.result(SOON)
    assert rig.world.snapshot() == before
    assert {span.name for span in rig.spans.recent()}.isdisjoint({"move-netdev", "move-rdma-device"})
    return caught.value


def _placed_without_netdev() -> tuple[Placed, ...]:
    return (make_placed((make_device("mlx5_rail0", []),)),)


@pytest.mark.parametrize("setting", [RdmaNetns.EXCLUSIVE, RdmaNetns.SHARED])
def test_a_device_whose_netdev_is_in_the_pod_already_is_given(rig: Rig, world: World, setting: RdmaNetns) -> None:
    """A CNI plugin moved it there before the runtime told us of the pod."""
    world.rdma_netns = setting
    pod = world.namespace(POD_PATH)
    assert pod is not None
    _device(world).netdev = world.add_link(pod, "net1")
    before = world.snapshot()
    record = _attached(rig, _placed_without_netdev()).record
    assert record is not None
    assert record.attached[0].devices[0].netdev_names == ("net1",)
    assert (_device(world).netns is pod) == (setting is RdmaNetns.EXCLUSIVE)
    _end(rig)
    assert world.snapshot() == before
    assert (rig.sandboxes.held(), world.held) == (0, 0)


@pytest.mark.parametrize("setting", [RdmaNetns.EXCLUSIVE, RdmaNetns.SHARED])
def test_a_device_whose_netdev_is_in_another_pod_is_refused_and_home(
    rig: Rig, world: World, setting: RdmaNetns
) -> None:
    world.rdma_netns = setting
    _device(world).netdev = world.add_link(world.add_namespace("/run/netns/other"), "net1")
    before = world.snapshot()
    sandbox = _begin(rig, _placed_without_netdev())
    with pytest.raises(PlacementError) as caught:
        # Of a device that moves the pod tells its netdevs only when it is there: the plan cannot.
        (sandbox.planned if setting is RdmaNetns.SHARED else sandbox.attach_done).result(SOON)
    assert caught.value.code is ErrorCode.DEVICE_IN_USE
    assert isinstance(sandbox.attach_done.exception(SOON), PlacementError)
    assert world.snapshot() == before
    assert (rig.sandboxes.held(), world.held) == (0, 0)


def test_isolation_is_refused_where_the_kernel_has_come_to_show_devices_to_all(rig: Rig, world: World) -> None:
    world.rdma_netns = RdmaNetns.SHARED
    (item,) = placed_on(world, "rail0")
    request = replace(item.admitted.request, isolation=Isolation.HARD)
    assert _refused(rig, (replace(item, admitted=replace(item.admitted, request=request)),)).code is (
        ErrorCode.RDMA_NETNS
    )


def test_a_driver_that_cannot_move_is_refused_before_anything_moves(rig: Rig, world: World) -> None:
    _device(world).movable = False
    error = _refused(rig)
    assert error.code is ErrorCode.RDMA_NETNS
    assert "mlx5_rail0" in error.what


@pytest.mark.parametrize(("held", "words"), [(CONTEXT, "process 4711 has it open"), (STORAGE, "nvme_rdma uses it")])
def test_a_device_that_somebody_uses_is_refused(rig: Rig, world: World, held: RdmaObject, words: str) -> None:
    _device(world).objects = (MANAGEMENT, held)
    error = _refused(rig)
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
    _device(world).objects = (MANAGEMENT, replace(held, process="ib_write_bw") if held is CONTEXT else held)
    (item,) = placed_on(world, "rail0", mode=mode)
    placed = (replace(item, devices=(replace(item.devices[0], kernel_index=_device(world).index),)),)
    if words:
        error = _refused(rig, placed)
        assert error.code is ErrorCode.DEVICE_IN_USE
        assert words in error.what
    else:
        _attached(rig, placed)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_socket_that_was_opened_since_the_inventory_was_read_keeps_the_device_from_leaving(
    rig: Rig, world: World, mode: Mode
) -> None:
    rail = next(iter(world.host.links.values()))
    rail.add_address(Address(interface=ip_interface("10.0.0.5/24")))
    world.sockets.append(HostSocket(protocol="tcp", address=ip_address("10.0.0.5"), port=4420))
    placed = placed_on(world, "rail0", mode=mode)
    if mode is Mode.EXCLUSIVE:
        assert "rail0 has the address 10.0.0.5 of 1 host socket (tcp port 4420)" in _refused(rig, placed).what
    else:
        world.rdma_netns = RdmaNetns.SHARED
        _attached(rig, placed)


def test_what_the_rdma_core_holds_on_every_device_is_no_use(rig: Rig, world: World) -> None:
    _device(world).objects = (MANAGEMENT,)
    _attached(rig)


def test_a_device_that_is_not_the_one_of_the_inventory_is_refused(rig: Rig, world: World) -> None:
    _device(world).node_guid = "dead:beef:0000:0001"
    assert _refused(rig).code is ErrorCode.INVENTORY


def test_a_second_device_that_cannot_move_keeps_the_first_from_moving(rig: Rig, world: World) -> None:
    add_rail(world, "rail1", physical=True)
    world.add_rdma("mlx5_rail1", movable=False)
    assert _refused(rig, placed_on(world, "rail0", "rail1")).code is ErrorCode.RDMA_NETNS


def test_a_pod_that_renamed_its_device_returns_it_under_the_hosts_name(rig: Rig, world: World) -> None:
    before = world.snapshot()
    _attached(rig)
    _device(world).name = "mine"
    _end(rig)
    assert world.snapshot() == before


def test_a_device_that_the_kernel_brought_home_is_left_there(rig: Rig, world: World) -> None:
    _attached(rig)
    _device(world).netns = world.host
    _end(rig)
    assert _device(world).netns is world.host


def test_a_physical_device_that_is_nowhere_is_looked_for_again(rig: Rig, world: World) -> None:
    (placed,) = placed_on(world, "rail0")
    (device,) = placed.devices
    _attached(rig, (replace(placed, devices=(replace(device, pci=PciAddress(0, 0x17, 0, 0)),)),))
    lost, world.rdma = world.rdma, []
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    rig.clock.wait_for_one()
    world.rdma = lost
    rig.clock.pass_one()
    done.result(SOON)
    assert _device(world).netns is world.host


def test_numbers_that_cannot_be_read_undo_the_attach(world: World, tmp_path: Path) -> None:
    before = world.snapshot()
    counting = FaultyKernel.counting(FakeKernel(world))
    rig = Rig(state=tmp_path / "first", world=world, kernel=counting)
    _attached(rig)
    operations = counting.operations
    _end(rig)
    rig.close()
    rig = Rig(state=tmp_path / "second", world=world, kernel=FaultyKernel(FakeKernel(world), fail_at=operations))
    with pytest.raises(AttachError) as caught:
        _begin(rig).attach_done.result(SOON)
    assert caught.value.errno == errno.ENOBUFS
    assert "mlx5_rail0" in caught.value.what
    assert world.snapshot() == before
    rig.close()


def test_a_daemon_that_starts_anew_brings_home_what_its_predecessor_moved(world: World, tmp_path: Path) -> None:
    before = world.snapshot()
    first = Rig(state=tmp_path, world=world)
    _attached(first)
    first.kill()
    second = Rig(state=tmp_path, world=world)
    assert second.sandboxes.recover(lambda _record: None) == ()
    _end(second)
    assert world.snapshot() == before
    second.close()


def test_two_devices_of_one_pod_get_their_own_numbers(rig: Rig, world: World) -> None:
    add_rail(world, "rail1", physical=True)
    world.add_rdma("mlx5_rail1", node_guid="0000:0000:0000:0001")
    (placed,) = placed_on(world, "rail0", "rail1")
    first, second = placed.devices
    second = replace(second, node_guid="0000:0000:0000:0001")
    record = _attached(rig, (replace(placed, devices=(first, second)),)).record
    assert record is not None
    minors = [item.device.char_devices[0].minor for item in record.attached[0].devices]
    assert minors == [device.minor for device in world.rdma]

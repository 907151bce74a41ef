"""What is true of a pod's devices at the end of an attach, and when the kernel says that something changed."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.news import look_at_all_again, node_removed
from nri_rdma.attach.numbers import Resolved
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import AttachError, ErrorCode, PlacementError
from nri_rdma.model.device import CharDevice, CharKind, LinkLayer, Port, RdmaNetns
from tests.fakes.kernel import FakeKernel, FaultyKernel, World
from tests.unit.attach.builders import POD_PATH, make_device, make_placed
from tests.unit.attach.rdma_life import attach, begin, device_of
from tests.unit.attach.sandbox_life import end_sandbox
from tests.unit.rigs.attachments import SOON, Rig, add_rail, await_taken_up, placed_on


def test_the_pod_gets_the_numbers_that_the_device_has_after_its_move(rig: Rig, world: World) -> None:
    old = device_of(world).minor
    record = attach(rig).now.record
    assert record is not None
    (node,) = record.attached[0].devices[0].device.char_devices
    assert (node.major, node.minor) == (231, device_of(world).minor)
    assert node.minor != old
    assert node.path == f"/dev/infiniband/uverbs{node.minor - 192}"
    assert node.mode == 0o666


def test_a_device_with_issm_has_it_in_the_pod_too(rig: Rig, world: World) -> None:
    """The kernel does not tell its number: it follows from umad's."""
    (uverbs,) = make_device("mlx5_rail0", []).char_devices
    port = Port(number=1, link_layer=LinkLayer.INFINIBAND, state="ACTIVE", speed_gbps=400)
    nodes = tuple(replace(uverbs, kind=kind) for kind in (CharKind.ISSM, CharKind.UMAD, CharKind.UVERBS))
    device = replace(make_device("mlx5_rail0", []), char_devices=nodes, ports=(port,))
    record = attach(rig, (make_placed((device,)),)).now.record
    assert record is not None
    number = device_of(world).minor - 192
    assert [(it.path, it.minor) for it in record.attached[0].devices[0].device.char_devices] == [
        (f"/dev/infiniband/issm{number}", 64 + number),
        (f"/dev/infiniband/umad{number}", number),
        (f"/dev/infiniband/uverbs{number}", 192 + number),
    ]


def _node(sandbox: Attachment) -> CharDevice:
    assert sandbox.now.record is not None
    (node,) = sandbox.now.record.attached[0].devices[0].device.char_devices
    return node


def _looked_again(sandbox: Attachment) -> None:
    assert sandbox.now.looked_again is not None
    sandbox.now.looked_again.result(SOON)


def test_a_node_that_the_kernel_took_away_is_looked_for_again(rig: Rig, world: World) -> None:
    """A driver that was loaded anew, or another move: the old number may be another device's by now."""
    sandbox = attach(rig)
    old = _node(sandbox)
    device_of(world).minor = world.new_minor()
    node_removed(rig.sandboxes, (old.major, old.minor), sequence=1)
    _looked_again(sandbox)
    assert _node(sandbox).minor == device_of(world).minor != old.minor
    ((written,), _) = rig.journal.load()
    assert written.attached == (sandbox.now.record.attached if sandbox.now.record is not None else ())


def test_the_events_of_the_attachs_own_move_and_other_nodes_change_nothing(rig: Rig) -> None:
    sandbox = attach(rig)
    node = _node(sandbox)
    sandbox.change(numbers_from=7)
    node_removed(rig.sandboxes, (node.major, node.minor), sequence=7)
    node_removed(rig.sandboxes, (node.major, node.minor + 1), sequence=8)
    assert sandbox.now.looked_again is None


def test_a_node_that_goes_while_numbers_are_read_has_them_read_again(rig: Rig) -> None:
    """Whose it was is not known: it may be one of those that are being read."""
    rig.event_sequence, rig.gate.stop_at = 7, "before resolve-numbers"
    sandbox = begin(rig)
    assert rig.gate.reached.wait(SOON)
    node_removed(rig.sandboxes, (231, 5), sequence=7)
    assert sandbox.now.looked_again is None
    node_removed(rig.sandboxes, (231, 5), sequence=8)
    rig.gate.open.set()
    sandbox.attach_done.result(SOON)
    _looked_again(sandbox)


def test_a_node_that_goes_before_numbers_are_read_is_none_of_them(rig: Rig) -> None:
    rig.gate.stop_at = "before move-netdev"
    sandbox = begin(rig)
    assert rig.gate.reached.wait(SOON)
    node = _node(sandbox)
    node_removed(rig.sandboxes, (231, 5), sequence=8)
    node_removed(rig.sandboxes, (node.major, node.minor), sequence=9)
    assert sandbox.now.looked_again is None
    rig.gate.open.set()
    sandbox.attach_done.result(SOON)


def test_a_device_that_is_gone_is_told_and_found_when_it_is_back(rig: Rig, world: World) -> None:
    sandbox = attach(rig)
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
    sandbox = attach(rig)
    device_of(world).name = "mine"
    rig.sandboxes.look_again(sandbox).result(SOON)
    assert sandbox.now.record is not None
    assert sandbox.now.record.device_names == "mine"
    end_sandbox(rig)
    assert world.snapshot() == before


def test_a_daemon_that_starts_looks_again_at_what_it_adopts(rig: Rig, world: World, tmp_path: Path) -> None:
    attach(rig)
    rig.close()
    device_of(world).minor = world.new_minor()
    second = Rig(state=tmp_path, world=world)
    second.sandboxes.recover(lambda _record: None)
    await_taken_up(second)
    sandbox = second.sandboxes.get("sandbox-1")
    assert sandbox is not None
    _looked_again(sandbox)
    assert _node(sandbox).minor == device_of(world).minor
    second.close()


def _placed_without_netdev() -> tuple[Placed, ...]:
    return (make_placed((make_device("mlx5_rail0", []),)),)


@pytest.mark.parametrize("setting", [RdmaNetns.EXCLUSIVE, RdmaNetns.SHARED])
def test_a_device_whose_netdev_is_in_the_pod_already_is_given(rig: Rig, world: World, setting: RdmaNetns) -> None:
    """A CNI plugin moved it there before the runtime told us of the pod."""
    world.rdma_netns = setting
    pod = world.namespace(POD_PATH)
    assert pod is not None
    device_of(world).netdev = world.add_link(pod, "net1")
    before = world.snapshot()
    record = attach(rig, _placed_without_netdev()).now.record
    assert record is not None
    assert record.attached[0].devices[0].netdev_names == ("net1",)
    assert (device_of(world).netns is pod) == (setting is RdmaNetns.EXCLUSIVE)
    end_sandbox(rig)
    assert world.snapshot() == before
    assert (rig.sandboxes.held(), world.held) == (0, 0)


@pytest.mark.parametrize("setting", [RdmaNetns.EXCLUSIVE, RdmaNetns.SHARED])
def test_a_device_whose_netdev_is_in_another_pod_is_refused_and_home(
    rig: Rig, world: World, setting: RdmaNetns
) -> None:
    world.rdma_netns = setting
    device_of(world).netdev = world.add_link(world.add_namespace("/run/netns/other"), "net1")
    before = world.snapshot()
    sandbox = begin(rig, _placed_without_netdev())
    with pytest.raises(PlacementError) as caught:
        # Of a device that moves the pod tells its netdevs only when it is there: the plan cannot.
        (sandbox.planned if setting is RdmaNetns.SHARED else sandbox.attach_done).result(SOON)
    assert caught.value.code is ErrorCode.DEVICE_IN_USE
    assert isinstance(sandbox.attach_done.exception(SOON), PlacementError)
    assert world.snapshot() == before
    assert (rig.sandboxes.held(), world.held) == (0, 0)


def test_numbers_that_cannot_be_read_undo_the_attach(world: World, tmp_path: Path) -> None:
    before = world.snapshot()
    counting = FaultyKernel.counting(FakeKernel(world))
    rig = Rig(state=tmp_path / "first", world=world, kernel=counting)
    attach(rig)
    operations = counting.operations  # the last one reads the GIDs
    end_sandbox(rig)
    rig.close()
    rig = Rig(state=tmp_path / "second", world=world, kernel=FaultyKernel(FakeKernel(world), fail_at=operations - 1))
    with pytest.raises(AttachError) as caught:
        begin(rig).attach_done.result(SOON)
    assert caught.value.errno == errno.ENOBUFS
    assert "mlx5_rail0" in caught.value.what
    assert world.snapshot() == before
    rig.close()


@pytest.mark.parametrize(("setting", "asked"), [(RdmaNetns.EXCLUSIVE, []), (RdmaNetns.SHARED, ["mlx5_rail0"])])
def test_the_host_is_asked_for_the_numbers_of_the_devices_that_stay_there_alone(
    world: World, tmp_path: Path, setting: RdmaNetns, asked: list[str]
) -> None:
    world.rdma_netns = setting
    seen: list[str] = []

    def resolve(known: Resolved) -> Resolved:
        seen.extend(device.name for device in known.devices)
        return replace(known, has_nodes=False)

    rig = Rig(state=tmp_path, world=world, resolve=resolve)
    attach(rig)
    assert seen == asked
    rig.close()


def test_two_devices_of_one_pod_get_their_own_numbers(rig: Rig, world: World) -> None:
    add_rail(world, "rail1", physical=True)
    world.add_rdma("mlx5_rail1", node_guid="0000:0000:0000:0001")
    (placed,) = placed_on(world, "rail0", "rail1")
    first, second = placed.devices
    second = replace(second, node_guid="0000:0000:0000:0001")
    record = attach(rig, (replace(placed, devices=(first, second)),)).now.record
    assert record is not None
    minors = [item.device.char_devices[0].minor for item in record.attached[0].devices]
    assert minors == [device.minor for device in world.rdma]

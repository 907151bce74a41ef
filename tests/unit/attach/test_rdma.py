"""RDMA devices that move into a pod: what is refused first, what the pod gets, how they come home."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.ops import Op, RenameRdma
from nri_rdma.attach.plan import RdmaMove
from nri_rdma.attach.port import KernelError, Namespace, Refused
from nri_rdma.attach.rdma import bring_rdma_home, find_rdma, issm_beside, netdevs_in_pod, with_numbers_in_pod
from nri_rdma.errors import PlacementError
from nri_rdma.model.device import CharKind, LinkLayer, Port, RdmaNetns
from nri_rdma.model.nldev import CharNumber
from nri_rdma.model.pci import PciAddress
from tests.fakes.kernel import FakeKernel, World
from tests.unit.attach.builders import POD_PATH, make_device, make_placed
from tests.unit.attach.rdma_life import attach, device_of
from tests.unit.attach.sandbox_life import end_sandbox
from tests.unit.rigs.attachments import SOON, Rig, placed_on


def test_the_rdma_device_goes_with_its_netdev_and_comes_home(rig: Rig, world: World) -> None:
    before = world.snapshot()
    attach(rig)
    assert device_of(world).netns is world.namespace(POD_PATH)
    end_sandbox(rig)
    assert world.snapshot() == before
    assert (rig.sandboxes.held(), world.held) == (0, 0)


def test_devices_of_one_guid_are_told_apart_by_their_index_and_then_by_their_name(world: World) -> None:
    (first,) = FakeKernel(world).rdma_devices(FakeKernel(world).host)
    move = RdmaMove(device="mlx5_rail0", index=first.index, node_guid=first.node_guid, parent="")
    renamed = replace(first, name="mine")
    reloaded = replace(first, index=first.index + 1)
    other = replace(first, index=first.index + 2, name="other")
    assert find_rdma((other, reloaded, renamed), move) == renamed
    assert find_rdma((other, reloaded), move) == reloaded
    assert find_rdma((other, replace(first, node_guid="0000:0000:0000:0009")), move) is None


class _Recording(FakeKernel):
    """A kernel that remembers what it was asked to change."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.applied: list[Op] = []

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        self.applied += ops
        return super().apply(namespace, index, ops)


def test_a_device_that_is_home_under_its_name_is_left_alone(world: World) -> None:
    kernel = _Recording(world)
    (found,) = kernel.rdma_devices(kernel.host)
    move = RdmaMove(device=found.name, index=found.index, node_guid=found.node_guid, parent="0000:17:00.0")
    bring_rdma_home(kernel, None, move)
    assert kernel.applied == []
    bring_rdma_home(kernel, None, replace(move, device="mlx5_before"))
    assert kernel.applied == [RenameRdma(name="mlx5_before")]


@pytest.mark.parametrize("is_held", [True, False])
def test_a_soft_device_that_is_nowhere_has_died_with_its_netdev_and_a_physical_one_is_missed_while_its_card_is_there(
    world: World, is_held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = FakeKernel(world)
    world.rdma.clear()
    namespace = kernel.open_namespace(POD_PATH) if is_held else None
    move = RdmaMove(device="rxe0", index=7, node_guid="", parent="")
    bring_rdma_home(kernel, namespace, move)
    with pytest.raises(KernelError, match="neither on the host nor in the pod"):
        bring_rdma_home(kernel, namespace, replace(move, parent="0000:17:00.0"))
    assert not caplog.records
    world.unplug("pci/0000:17:00.0")
    bring_rdma_home(kernel, namespace, replace(move, parent="0000:17:00.0"))
    (line,) = caplog.records
    told = (line.levelname, line.__dict__["device"], line.__dict__["why"])
    assert told == ("WARNING", "rxe0", "pci/0000:17:00.0 was removed from the machine")


def test_beyond_the_64th_port_nobody_says_which_issm_belongs_to_a_umad() -> None:
    last = CharNumber(name="umad63", major=231, minor=63)
    assert issm_beside(last) == CharNumber(name="issm63", major=231, minor=127)
    assert issm_beside(CharNumber(name="umad64", major=239, minor=0)) is None


class _WithoutUmad(FakeKernel):
    """A kernel whose driver has no umad device for the port (any more)."""

    def char_device(
        self, namespace: Namespace, index: int | None, kind: CharKind, port: int | None
    ) -> CharNumber | None:
        return None if kind is CharKind.UMAD else super().char_device(namespace, index, kind, port)


def test_where_a_port_has_no_umad_its_issm_is_missing_too(world: World) -> None:
    (uverbs,) = make_device("mlx5_rail0", []).char_devices
    port = Port(number=1, link_layer=LinkLayer.INFINIBAND, state="ACTIVE", speed_gbps=400)
    nodes = (replace(uverbs, kind=CharKind.ISSM), uverbs)
    device = replace(make_device("mlx5_rail0", []), char_devices=nodes, ports=(port,))
    kernel = _WithoutUmad(world)
    with pytest.raises(KernelError, match="1 of 2 came back"):
        with_numbers_in_pod(kernel, kernel.host, device, device_of(world).index)


def test_in_a_pod_a_devices_netdevs_are_its_own(world: World) -> None:
    """Where the kernel shows all RDMA devices everywhere, the pod sees others, too."""
    world.rdma_netns = RdmaNetns.SHARED
    pod = world.namespace(POD_PATH)
    assert pod is not None
    device_of(world).netdev = world.add_link(pod, "net7")
    world.add_rdma("mlx5_other", node_guid="0000:0000:0000:0009", netdev=world.add_link(pod, "net1"))
    kernel = FakeKernel(world)
    namespace = kernel.open_namespace(POD_PATH)
    other = replace(make_device("mlx5_other", []), node_guid="0000:0000:0000:0009")
    assert netdevs_in_pod(kernel, namespace, other) == ("net1",)
    assert netdevs_in_pod(kernel, namespace, make_device("mlx5_rail0", [])) == ("net7",)
    with pytest.raises(PlacementError, match="the netdev of mlx5_gone is neither on the host nor in the pod"):
        netdevs_in_pod(kernel, namespace, make_device("mlx5_gone", []))


def test_what_belongs_to_a_port_is_there_for_each_port_and_the_rest_once(world: World) -> None:
    (uverbs,) = make_device("mlx5_rail0", []).char_devices
    ports = tuple(Port(number=it, link_layer=LinkLayer.INFINIBAND, state="ACTIVE", speed_gbps=400) for it in (1, 2))
    nodes = (replace(uverbs, kind=CharKind.UMAD), replace(uverbs, kind=CharKind.UMAD), uverbs)
    device = replace(make_device("mlx5_rail0", []), char_devices=nodes, ports=ports)
    kernel = FakeKernel(world)
    found = with_numbers_in_pod(kernel, kernel.host, device, device_of(world).index)
    assert [it.kind for it in found.char_devices] == [CharKind.UMAD, CharKind.UMAD, CharKind.UVERBS]


def test_on_the_way_back_the_rdma_device_is_first(rig: Rig) -> None:
    attach(rig)
    end_sandbox(rig)
    undone = [span.name for span in rig.spans.recent() if span.name.startswith("undo ")]
    assert undone == ["undo move-rdma-device", "undo configure-netdev", "undo move-netdev"]


def test_a_device_without_a_netdev_moves_alone(rig: Rig, world: World) -> None:
    placed = (make_placed((make_device("mlx5_rail0", [], link_layer=LinkLayer.INFINIBAND),)),)
    attach(rig, placed)
    assert device_of(world).netns is not world.host
    end_sandbox(rig)
    assert device_of(world).netns is world.host


@pytest.mark.parametrize("setting", [RdmaNetns.SHARED, RdmaNetns.NONE])
def test_where_the_kernel_shows_it_everywhere_the_rdma_device_stays(rig: Rig, world: World, setting: RdmaNetns) -> None:
    world.rdma_netns = setting
    record = attach(rig).now.record
    assert record is not None
    assert record.plan.rdma_moves == ()
    assert record.plan.moves != ()


def test_a_pod_that_renamed_its_device_returns_it_under_the_hosts_name(rig: Rig, world: World) -> None:
    before = world.snapshot()
    attach(rig)
    device_of(world).name = "mine"
    end_sandbox(rig)
    assert world.snapshot() == before


def test_a_device_that_the_kernel_brought_home_is_left_there(rig: Rig, world: World) -> None:
    attach(rig)
    device_of(world).netns = world.host
    end_sandbox(rig)
    assert device_of(world).netns is world.host


def test_a_physical_device_that_is_nowhere_is_looked_for_again(rig: Rig, world: World) -> None:
    (placed,) = placed_on(world, "rail0")
    (device,) = placed.devices
    attach(rig, (replace(placed, devices=(replace(device, pci=PciAddress(0, 0x17, 0, 0)),)),))
    lost, world.rdma = world.rdma, []
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    rig.clock.wait_for_one()
    world.rdma = lost
    rig.clock.pass_one()
    done.result(SOON)
    assert device_of(world).netns is world.host


def test_a_daemon_that_starts_anew_brings_home_what_its_predecessor_moved(world: World, tmp_path: Path) -> None:
    before = world.snapshot()
    first = Rig(state=tmp_path, world=world)
    attach(first)
    first.kill()
    second = Rig(state=tmp_path, world=world)
    assert second.sandboxes.recover(lambda _record: None) == ()
    end_sandbox(second)
    assert world.snapshot() == before
    second.close()

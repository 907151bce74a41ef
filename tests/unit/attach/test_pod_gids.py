"""The GIDs of a pod's devices, as an attach finds them."""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from ipaddress import IPv6Address, ip_interface
from pathlib import Path

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.news import look_at_all_again
from nri_rdma.attach.port import Kernel, Namespace
from nri_rdma.decide.placement import Placed
from nri_rdma.model.device import RdmaNetns
from nri_rdma.model.gid import Gid, GidType, PortGid
from nri_rdma.model.request import Mode
from tests.fakes.kernel import Address, FakeKernel, FaultyKernel, World
from tests.unit.attach.builders import POD_PATH, make_device, make_placed, make_pod
from tests.unit.attach.rdma_life import attach, device_of
from tests.unit.attach.sandbox_life import Start, end_sandbox
from tests.unit.rigs.attachments import SOON, Rig, await_taken_up, placed_on

OWN, HOSTS = "10.1.0.2", "192.168.0.7"


def gid(index: int, address: str, netdev: str = "rdma0") -> Gid:
    value = ip_interface(address).ip
    mapped = IPv6Address(f"::ffff:{value}") if value.version == 4 else value
    assert isinstance(mapped, IPv6Address)
    return Gid(index=index, value=mapped, type=GidType.ROCE_V2, netdev=netdev)


LINK_LOCAL = gid(0, "fe80::1")


def asking(world: World, mode: Mode = Mode.EXCLUSIVE) -> tuple[Placed, ...]:
    """A request for the rail; alone with an address of its own."""
    (placed,) = placed_on(world, "rail0", mode=mode)
    if mode is Mode.SHARED:
        return (placed,)
    return (make_placed(placed.devices, addresses=((ip_interface(f"{OWN}/24"),),)),)


def port_of(sandbox: Attachment) -> PortGid:
    assert sandbox.now.record is not None
    (port,) = sandbox.now.record.gids.ports
    return port


def test_the_gid_of_the_pods_own_address_is_read_in_the_pod(rig: Rig, world: World) -> None:
    device_of(world).gids = (LINK_LOCAL, gid(1, HOSTS), gid(2, OWN))
    sandbox = attach(rig, asking(world))
    assert (port_of(sandbox).gid, port_of(sandbox).is_own) == (gid(2, OWN), True)
    assert sandbox.now.record is not None
    told = dict(sandbox.now.record.gids.variables)
    assert (told["NCCL_IB_GID_INDEX"], told["NCCL_IB_ADDR_RANGE"]) == ("2", "0.0.0.0/1")


class LateKernel(FakeKernel):
    """A kernel that adds a GID when its table has been read so often."""

    def __init__(self, world: World, late: Gid, after: int) -> None:
        super().__init__(world)
        self._world, self._late, self._after = world, late, after
        self.readings = 0

    def gid_tables(
        self, namespace: Namespace, ports: Collection[tuple[str, int]], gap: int
    ) -> Mapping[tuple[str, int], tuple[Gid, ...]]:
        self.readings += 1
        device = device_of(self._world)
        if self.readings == self._after and device.gids is not None:
            device.gids += (self._late,)
        return super().gid_tables(namespace, ports, gap)


def test_an_attach_waits_for_the_gid_of_an_address_that_is_in_the_pod(start: Start, world: World) -> None:
    device_of(world).gids = (LINK_LOCAL,)
    kernel = LateKernel(world, gid(1, OWN), after=3)
    sandbox = attach(start(world, kernel=kernel, gid_wait_s=SOON), asking(world))
    assert (port_of(sandbox).gid, kernel.readings) == (gid(1, OWN), 3)


def test_a_gid_that_does_not_come_is_told_and_the_pod_starts(start: Start, world: World) -> None:
    device_of(world).gids = (LINK_LOCAL,)
    began = time.monotonic()
    sandbox = attach(start(world, gid_wait_s=0.1), asking(world))
    assert 0.1 <= time.monotonic() - began < SOON
    assert (port_of(sandbox).gid, port_of(sandbox).is_own) == (LINK_LOCAL, False)


def test_nobody_waits_where_the_pod_has_no_address(start: Start, world: World) -> None:
    device_of(world).gids = (LINK_LOCAL,)
    began = time.monotonic()
    attach(start(world, gid_wait_s=SOON), placed_on(world, "rail0"))
    assert time.monotonic() - began < SOON


def test_a_device_without_a_table_has_no_gids(rig: Rig, world: World) -> None:
    sandbox = attach(rig, asking(world))
    assert sandbox.now.record is not None
    assert sandbox.now.record.gids.ports == ()


def sharing(world: World) -> None:
    """A kernel that shows RDMA devices everywhere."""
    world.rdma_netns = RdmaNetns.SHARED


def test_a_pod_that_shares_a_device_sends_by_the_hosts_gid(rig: Rig, world: World) -> None:
    sharing(world)
    device_of(world).gids = (gid(0, "fe80::1", "rail0"), gid(1, HOSTS, "rail0"))
    port = port_of(attach(rig, asking(world, Mode.SHARED)))
    assert (port.gid, port.is_own) == (gid(1, HOSTS, "rail0"), False)


@pytest.mark.parametrize("name", ["net1", "rail0"])
def test_a_pod_whose_own_netdev_has_a_gid_on_a_shared_device_sends_by_that(rig: Rig, world: World, name: str) -> None:
    """As with a macvlan of another plugin, which may have the name of the host's netdev."""
    sharing(world)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    child = world.add_link(pod, name)
    child.add_address(Address(interface=ip_interface(f"{OWN}/24")))
    device_of(world).gids = (gid(0, HOSTS, "rail0"), gid(1, "10.1.0.3", name), gid(2, OWN, name))
    port = port_of(attach(rig, asking(world, Mode.SHARED)))
    assert (port.gid, port.is_own) == (gid(2, OWN, name), True)


def test_a_pod_that_shares_a_device_does_not_send_by_the_gid_of_another_pods_netdev(rig: Rig, world: World) -> None:
    """A netdev that is neither on the host nor has this address in the pod; a VLAN on the host is the host's."""
    sharing(world)
    others, ours = gid(1, "10.1.0.3", "net1"), gid(2, HOSTS, "rail0.7")
    device_of(world).gids = (gid(0, "fe80::1", "rail0"), others)
    port = port_of(attach(rig, asking(world, Mode.SHARED)))
    assert (port.gid, port.others) == (gid(0, "fe80::1", "rail0"), (others.address,))
    end_sandbox(rig)
    world.add_link(world.host, "rail0.7")
    device_of(world).gids = (gid(0, "fe80::1", "rail0"), others, ours)
    assert port_of(attach(rig, asking(world, Mode.SHARED))).gid == ours


def test_on_the_hosts_network_its_gids_are_the_pods(rig: Rig, world: World) -> None:
    sharing(world)
    device_of(world).gids = (gid(0, HOSTS, "rail0"),)
    sandbox = rig.sandboxes.begin(make_pod(path=""), asking(world, Mode.SHARED), None)
    sandbox.attach_done.result(SOON)
    assert port_of(sandbox).is_own


def test_what_cannot_be_read_is_told_and_the_pod_starts(world: World, tmp_path: Path) -> None:
    device_of(world).gids = (LINK_LOCAL,)

    def begun(kernel: Kernel) -> tuple[Rig, Attachment]:
        rig = Rig(state=tmp_path, world=world, kernel=kernel)
        return rig, attach(rig, asking(world))

    counting = FaultyKernel.counting(FakeKernel(world))
    rig, sandbox = begun(counting)
    operations = counting.operations
    end_sandbox(rig)
    rig.close()
    rig, sandbox = begun(FaultyKernel(FakeKernel(world), fail_at=operations))
    assert sandbox.now.record is not None
    assert sandbox.now.record.gids.problem.startswith("GIDs not read: ")
    rig.close()


def test_gids_are_read_again_with_the_numbers_and_by_the_next_daemon(start: Start, world: World) -> None:
    device_of(world).gids = (LINK_LOCAL, gid(1, OWN))
    rig = start(world)
    sandbox = attach(rig, asking(world))
    device_of(world).gids = (LINK_LOCAL, gid(4, OWN))
    look_at_all_again(rig.sandboxes)
    assert sandbox.now.looked_again is not None
    sandbox.now.looked_again.result(SOON)
    assert port_of(sandbox).gid == gid(4, OWN)
    ((written,), _) = rig.journal.load()
    assert written.gids.ports == ()
    rig.kill()
    again = start(world)
    again.sandboxes.recover(lambda _record: None)
    await_taken_up(again)
    (adopted,) = again.sandboxes.all()
    assert adopted.now.looked_again is not None
    adopted.now.looked_again.result(SOON)
    assert port_of(adopted).gid == gid(4, OWN)


def test_a_device_whose_port_is_down_does_not_count_beside_a_live_one(rig: Rig, world: World) -> None:
    """It is not among the devices that NCCL and UCX are told of either."""
    sharing(world)
    (placed,) = asking(world, Mode.SHARED)
    (live,) = placed.devices
    world.add_rdma("mlx5_dead", parent="0000:18:00.0")
    for device, index in zip(world.rdma, (1, 5), strict=True):
        device.gids = (gid(index, HOSTS, "rail0"),)
    dead = replace(make_device("mlx5_dead", []), ports=(replace(live.ports[0], state="DOWN"),))
    sandbox = attach(rig, (make_placed((live, dead), mode=Mode.SHARED),))
    assert sandbox.now.record is not None
    assert [it.place for it in sandbox.now.record.gids.ports] == ["mlx5_rail0:1", "mlx5_dead:1"]
    assert dict(sandbox.now.record.gids.variables)["NCCL_IB_GID_INDEX"] == "1"

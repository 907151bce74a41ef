"""Ids that stand for devices, on the walk of a pod: exactly these devices, each with one owner, and no container
without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.attach.holdings import held_by_id
from nri_rdma.commands.status.device_holders import taken_from
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.engine.shares import ShareBook
from nri_rdma.errors import NriRdmaError, PlacementError
from nri_rdma.model.device import DeviceId
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from nri_rdma.text.share_annotations import share_annotation
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.doors.deviceplugin.pools import NIC, pool_of_devices
from tests.unit.rigs.engine_with_kubelet import Kubelet
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.nri_calls import NOTHING, Got, Handlers


class Node:
    """The node "eight" with a pool of devices, a kubelet and a runtime."""

    def __init__(self, inside: InsideDaemon, one: Pool) -> None:
        self.kubelet, self.inside = Kubelet(), inside
        inside.engine.kubelet.kubelet = self.kubelet
        inside.engine.kubelet.shares = ShareBook([one])
        inside.engine.offering.policy = policy_of([one], (), allow_default_pool=False)
        self.handlers = Handlers(inside)
        self.ids = [device.id for device in inside.node.devices]

    def start(self, name: str, *numbers: int, container: str = "main") -> nri.PodSandbox:
        """A pod whose container was allocated the devices of these numbers: Allocate, then RunPodSandbox."""
        ids = [self.ids[number] for number in numbers]
        if ids:
            self.inside.engine.kubelet.shares.allocated(NIC, ids)
            self.kubelet.give_ids(f"default/{name}", container, NIC, *ids)
        main = ContainerManifest(name="main")
        manifest = PodManifest(kind="Pod", namespace="default", name=name, annotations={}, containers=(main,))
        return self.handlers.run_pod(manifest)

    def create(self, pod: nri.PodSandbox, *numbers: int, container: str = "main") -> Got:
        """A container of it, with the annotation of Allocate."""
        told = dict([share_annotation(NIC, [self.ids[number] for number in numbers])]) if numbers else {}
        return self.handlers.create(pod, ContainerManifest(name=container), annotations=told)

    @property
    def owners(self) -> dict[DeviceId, list[str]]:
        """Who has which device."""
        return {key: sorted(it.owner for it in holders) for key, holders in self.inside.reservations.taken().items()}


@pytest.fixture(params=list(Mode))
def node(tmp_path: Path, eight: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    with InsideDaemon(tmp_path, eight) as inside:
        yield Node(inside, pool_of_devices(request.param))


def test_a_container_gets_the_devices_whose_ids_it_was_allocated_and_another_gets_none(node: Node) -> None:
    pod = node.start("a", 5, 2)
    got = node.create(pod, 5, 2)
    assert sorted(got.names) == ["rdma_cm", "uverbs2", "uverbs5"]
    assert got.env["RDMA_DEVICES_NIC"] == "mlx5_2,mlx5_5"
    assert node.create(pod, container="side") == NOTHING
    assert node.owners == {node.ids[2]: ["default/a"], node.ids[5]: ["default/a"]}


def test_an_id_that_is_allocated_again_while_a_pod_has_its_device_is_refused_until_that_has_ended(node: Node) -> None:
    """As by a kubelet that has lost its checkpoint."""
    first = node.start("a", 3)
    with pytest.raises(PlacementError, match=r"DEVICE-IN-USE: mlx5_3 is held by pod default/a"):
        node.start("b", 3)
    late = node.start("c")
    with pytest.raises(NriRdmaError, match=r"DEVICE-IN-USE: mlx5_3 is held by pod default/a"):
        node.create(late, 3)
    assert node.owners == {node.ids[3]: ["default/a"]}
    node.handlers.stop_pod(first)
    assert node.create(node.start("b", 3), 3).names == ["uverbs3", "rdma_cm"]


def test_an_init_container_has_the_device_that_the_kubelet_gives_to_the_next_one(node: Node) -> None:
    pod = node.start("a", 4)
    assert node.create(pod, 4, container="first").names == ["uverbs4", "rdma_cm"]
    assert node.create(pod, 4).names == ["uverbs4", "rdma_cm"]
    assert len(node.inside.sandboxes.of(pod.id)) == 1
    node.handlers.stop_pod(pod)
    assert node.owners == {}


def test_an_init_container_with_more_devices_gets_the_others_besides(node: Node) -> None:
    pod = node.start("a", 4)
    assert sorted(node.create(pod, 4, 6, container="first").names) == ["rdma_cm", "uverbs4", "uverbs6"]
    assert node.create(pod, 4).names == ["uverbs4", "rdma_cm"]
    assert node.owners == {node.ids[4]: ["default/a"], node.ids[6]: ["default/a"]}


def test_where_the_kubelet_is_late_the_container_itself_tells_which_device_it_has(node: Node) -> None:
    node.kubelet.is_late = True
    pod = node.start("a", 1)
    assert node.create(pod, 1).names == ["uverbs1", "rdma_cm"]
    assert node.owners == {node.ids[1]: ["default/a"]}


def test_an_id_whose_device_is_gone_is_refused(node: Node) -> None:
    pod = node.start("a")
    told = dict([share_annotation(NIC, ["0000:ff:00.0"])])
    with pytest.raises(NriRdmaError, match=r"DEVICE-UNKNOWN: no RDMA device of this node matches id 0000:ff:00.0"):
        node.handlers.create(pod, ContainerManifest(name="main"), annotations=told)


def test_what_an_earlier_daemon_attached_has_its_owner_still(node: Node) -> None:
    pod = node.start("a", 7)
    (attachment,) = node.inside.sandboxes.of(pod.id)
    assert attachment.now.record is not None
    ((device_id, holding),) = attachment.now.record.holdings
    assert (device_id, holding.is_sole, holding.shares) == (node.ids[7], True, frozenset({node.ids[7]}))
    assert [device.name for device in held_by_id([attachment], "nics")] == ["mlx5_7"]
    assert held_by_id([attachment], "others") == ()


def test_status_counts_the_devices_that_pods_have(node: Node) -> None:
    node.start("a", 5, 2)
    socket = node.inside.settings.control_path
    (told,) = ask_status(socket)["pools"]
    assert (told["resource"], told["shares"], told["given"], told["gives"]) == (NIC, 8, 2, "device")
    assert told["limits"] == {}  # who has a device has all of it
    assert taken_from(ask_status(socket)) == node.inside.reservations.taken()
    printed = nri_rdma("status", "--state-dir", node.inside.settings.state_dir, columns=120).stdout
    assert "rdma/nic: 2 of 8 devices given, each to one pod" in printed
    assert "WARNING, its containers have no guard: the hook is not at guard_hook on the host" in printed

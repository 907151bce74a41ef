"""Devices that others gave to containers: by the kubelet's word, by the runtime's, by the nodes a container has."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.record import Phase
from nri_rdma.commands.explain.explanation import Facts, explain
from nri_rdma.commands.explain.gather import FactsSource
from nri_rdma.commands.explain.with_cdi import with_registry
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.request import RdmaLimits
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from tests.fakes.kernel import World
from tests.unit.attach.builders import make_pod
from tests.unit.model.hardware import RDMA_CM, uverbs
from tests.unit.rigs.attachments import SOON, Rig
from tests.unit.rigs.engine import ONE, PREFIX
from tests.unit.rigs.engine_with_kubelet import (
    FOREIGN,
    MOVE,
    NIC,
    OTHER_PATH,
    VENDOR,
    Node,
    names,
    node,
    on_host,
    refusal,
    spec,
    world,
)
from tests.unit.rigs.nri_calls import NOTHING, of_edits, of_explained
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

__all__ = ["node", "world"]


def test_the_kubelet_tells_and_the_devices_are_there_before_the_first_container(node: Node, world: World) -> None:
    before = world.snapshot()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(make_pod(), "trainer", NIC)
    node.start(annotations={})
    assert "rail0" not in on_host(world)
    edits = node.create("trainer", 0)
    assert edits.rdma_max == ("mlx5_0 hca_handle=4 hca_object=max",)
    assert edits.memlock is not None
    assert "RDMA_DEVICES_CLAIM_1" in names(edits)
    assert edits.char_devices == ()  # CDI has put them there
    assert node.create("sidecar") == ContainerEdits()
    node.stop()
    assert world.snapshot() == before
    assert not node.holders


def test_a_claim_that_no_container_names_is_there_for_all_of_them(node: Node, world: World) -> None:
    before = world.snapshot()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.claim(NIC, pods=(make_pod(),))
    node.kubelet.give(make_pod(), "trainer")
    node.start(annotations={})
    assert "rail0" not in on_host(world)
    for container in ("trainer", "sidecar"):
        edits = node.create(container)
        assert [it.path for it in edits.char_devices] == [uverbs(0).path, RDMA_CM.path]
        assert "RDMA_DEVICES_CLAIM_1" in names(edits)
    node.stop()
    assert world.snapshot() == before
    assert not node.holders


def test_nobody_told_and_the_devices_move_when_the_container_is_made(node: Node, world: World) -> None:
    before = world.snapshot()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.start(annotations={})
    assert not node.engine.knows("sandbox-1")
    assert node.create("trainer", 0).rdma_max == ("mlx5_0 hca_handle=4 hca_object=max",)
    assert "rail0" not in on_host(world)
    assert [it.part for it in node.rig.sandboxes.of("sandbox-1")] == ["trainer"]
    node.stop()
    assert world.snapshot() == before
    assert not node.holders


def test_a_container_that_is_made_again_finds_its_devices(node: Node, world: World) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    first = node.create("trainer", 0)
    node.node.refresh()  # the netdev is not on the host any more
    assert node.create("trainer", 0) == first
    assert len(node.rig.sandboxes.of("sandbox-1")) == 1


def test_a_claim_of_two_containers_moves_its_devices_once_and_both_are_served(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    first = node.create("trainer", 0)
    second = node.create("helper", 0)
    assert second.env == first.env
    (part,) = node.rig.sandboxes.of("sandbox-1")
    assert part.now.record is not None
    (item,) = part.now.record.attached
    assert sorted(item.admitted.request.scope.only or ()) == ["helper", "trainer"]
    assert node.create("other") == ContainerEdits()


def test_the_devices_key_counts_more_than_its_specs(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE, own="limits: {hcaObjects: 9}"))
    assert node.create("trainer", 0).rdma_max == ("mlx5_0 hca_handle=max hca_object=9",)
    (part,) = node.rig.sandboxes.of("sandbox-1")
    assert part.now.record is not None
    assert part.now.record.plan.moves == ()


def test_netdevices_of_a_spec_move_under_their_own_names(node: Node, world: World) -> None:
    before = world.snapshot()
    node.specify(spec(NIC, 0, netDevices=[{"hostInterfaceName": "rail0", "name": "fabric0"}]))
    edits = node.create("trainer", 0, net_devices=frozenset({"rail0", "eth9"}))
    assert edits.moved_netdevs == ("rail0",)
    assert ("RDMA_NETDEVS_CLAIM_1", "fabric0") in edits.env
    node.stop()
    assert world.snapshot() == before


def test_a_spec_that_asks_what_cannot_be_read_refuses_its_container(node: Node) -> None:
    node.specify(spec(NIC, 0, keys="mode: exclusiv"))
    told = refusal(lambda: node.create("trainer", 0))
    assert "exclusiv" in str(told)
    assert "/cdi/0.json" in str(told)
    node.kubelet.give(make_pod(), "trainer", NIC)
    assert "exclusiv" in str(refusal(lambda: node.start(annotations={})))
    assert not node.engine.knows("sandbox-1")


def test_a_request_of_a_cdi_device_chooses_nothing(node: Node) -> None:
    node.specify(spec(NIC, 0, keys="{count: 2, mode: exclusive}"))
    told = refusal(lambda: node.create("trainer", 0))
    assert told.where.endswith(".count")


def test_a_device_that_another_pod_has_is_not_given_again(node: Node) -> None:
    node.start(annotations=ONE)  # rail0, by annotation
    node.specify(spec(NIC, 0, keys=MOVE))
    other = make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH)
    told = refusal(lambda: node.create("trainer", 0, pod=other))
    assert told.code in {ErrorCode.DEVICE_CONFLICT, ErrorCode.DEVICE_UNKNOWN}
    assert not node.rig.sandboxes.of("sandbox-2")


def test_an_annotation_of_the_same_pod_gets_other_devices(node: Node, world: World) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(make_pod(), "main", NIC)
    node.start(annotations={f"{PREFIX}/pod": "{mode: exclusive}"})
    record = node.sandbox().now.record
    assert record is not None
    assert record.device_names == "mlx5_1, mlx5_0"
    assert on_host(world).isdisjoint({"rail0", "rail1"})


def test_a_late_kubelet_does_not_keep_the_pod(node: Node, world: World) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(make_pod(), "trainer", NIC)
    node.kubelet.is_late = True
    node.start(annotations={})
    assert "rail0" in on_host(world)
    assert node.create("trainer", 0).rdma_max


def test_others_are_observed_and_get_nothing(node: Node) -> None:
    node.specify(spec(FOREIGN, 0))
    assert node.create("main", 0) == ContainerEdits()
    (seen,) = node.seen()
    assert (seen.pod, seen.container, seen.what) == (str(make_pod()), "main", FOREIGN)
    assert (seen.devices, seen.source, seen.adopt) == (("mlx5_0",), "device nodes", "observe")
    node.stop()
    assert node.seen() == []


def test_complete_adds_what_its_giver_left_out(node: Node, world: World) -> None:
    node.engine.offering.adoption = Adoption(
        vendors={
            "sriov.example.org": VendorAdoption(
                adopt=Adopt.COMPLETE, memlock=4096, limits=RdmaLimits(hca_handles=2, hca_objects=30)
            )
        }
    )
    node.specify(spec(FOREIGN, 0), spec(NIC, 1))
    edits = node.create("main", 0)
    assert edits.rdma_max == ("mlx5_0 hca_handle=2 hca_object=30",)
    assert edits.memlock == 4096
    assert ("NCCL_IB_HCA", "=mlx5_0") in edits.env
    assert edits.char_devices == ()
    assert "rail0" in on_host(world)
    assert node.create("other", 1) == ContainerEdits()  # another vendor's


def test_enforce_refuses_nodes_that_nobody_allocated(node: Node) -> None:
    node.engine.offering.adoption = Adoption(others=VendorAdoption(adopt=Adopt.ENFORCE))
    node.specify(spec(FOREIGN, 0))
    told = refusal(lambda: node.create("main", 1))
    assert told.code is ErrorCode.NOT_ALLOCATED
    assert "mlx5_1" in str(told)
    assert "RDMA_DEVICES_0000_08_00_2" in names(node.create("main", 0))  # looks like it, and nobody knows better


def test_enforce_believes_the_kubelet_more_than_the_nodes(node: Node) -> None:
    node.engine.offering.adoption = Adoption(vendors={"sriov.example.org": VendorAdoption(adopt=Adopt.ENFORCE)})
    node.specify(spec(FOREIGN, 0))
    node.kubelet.give(make_pod(), "main", FOREIGN)
    node.start(annotations={})
    assert node.create("main", 0).env
    assert refusal(lambda: node.create("thief", 0)).code is ErrorCode.NOT_ALLOCATED


def test_devices_of_an_annotation_are_allocated(node: Node) -> None:
    node.engine.offering.adoption = Adoption(others=VendorAdoption(adopt=Adopt.ENFORCE))
    node.start(annotations=ONE)
    assert node.create("main", 0, annotations=ONE).env


def test_privileged_containers_are_only_reported(node: Node) -> None:
    node.engine.offering.adoption = Adoption(others=VendorAdoption(adopt=Adopt.ENFORCE))
    node.specify(spec(NIC, 0, keys=MOVE))
    assert node.create("agent", 0, 1, is_privileged=True) == ContainerEdits()
    (seen,) = node.seen()
    assert seen.is_privileged
    assert seen.what == "device nodes"


def test_a_daemon_that_starts_anew_takes_up_what_was_attached_late(world: World, tmp_path: Path) -> None:
    before = world.snapshot()
    first_rig = Rig(state=tmp_path, world=world, resolve=lambda known: known)
    first = Node(first_rig)
    first.specify(spec(NIC, 0, keys=MOVE))
    edits = first.create("trainer", 0)
    first_rig.close()
    rig = Rig(state=tmp_path, world=world, resolve=lambda known: known)
    second = Node(rig)
    second.specify(spec(NIC, 0, keys=MOVE))
    assert rig.sandboxes.recover(lambda record: second.reservations.hold(record.key, record.holdings)) == ()
    assert second.create("trainer", 0) == edits
    second.stop()
    assert world.snapshot() == before
    rig.close()


def test_an_attach_that_takes_long_is_not_ready_and_goes_on(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.rig.gate.stop_at = "before"
    told = refusal(lambda: node.create("trainer", 0, seconds=0.3))
    assert told.code is ErrorCode.NOT_READY
    assert "network is not ready" in str(told)
    node.rig.gate.open.set()
    (part,) = node.rig.sandboxes.of("sandbox-1")
    part.attach_done.result(SOON)
    assert part.state is Phase.ATTACHED
    assert node.create("trainer", 0).rdma_max


KEYS = (
    None,
    "",
    "mode: exclusive",
    MOVE,
    "mode: shared, memlock: 4096",
    "{mode: shared, memlock: 4096}",
    "{devices: [umad]}",
    "{mode: exclusive, interface: {name: fab0, mtu: 4200}}",
    "{interface: {mtu: 9000}}",
    "{isolation: hard, mode: exclusive}",
    "{pool: default}",
    "{name: rail, limits: {hcaHandles: 2, hcaObjects: 3}}",
)
ADOPTIONS = (
    Adoption(),
    Adoption(others=VendorAdoption(adopt=Adopt.COMPLETE, memlock=1 << 20)),
    Adoption(vendors={VENDOR: VendorAdoption(adopt=Adopt.ENFORCE, limits=RdmaLimits(hca_handles=7))}),
)


@pytest.mark.parametrize("adoption", ADOPTIONS)
@pytest.mark.parametrize("annotation", ["", "{mode: exclusive}", "{count: 2, mode: shared}", "1"])
@pytest.mark.parametrize("told", ["kubelet", "late"])
def test_explain_says_of_a_cdi_device_what_the_daemon_does(
    node: Node, adoption: Adoption, annotation: str, told: str
) -> None:
    node.engine.offering.adoption = adoption
    annotations = {f"{PREFIX}/pod": annotation} if annotation else {}
    outcomes = set()
    for number, keys in enumerate(KEYS):
        pod = make_pod(f"sandbox-{number}")
        node.specify(spec(NIC, 0, own=keys))
        if told == "kubelet":
            node.kubelet.give(pod, "main", NIC)
        elif annotation:
            continue  # a late one meets what the annotation has taken: explain decides for both at once
        explained = explain(manifest(annotations), facts(node))
        try:
            node.start(pod, annotations)
            got = node.create("main", 0, pod=pod, annotations=annotations)
        except NriRdmaError as refusal:
            assert str(explained.refusal) == str(refusal), keys
            outcomes.add(str(refusal.code))
        else:
            assert explained.refusal is None, keys
            assert ([*map(of_explained, explained.containers)] or [NOTHING]) == [of_edits(got)], keys
            outcomes.add("served" if got != ContainerEdits() else "nothing")
        node.stop(pod.sandbox_id)
        node.kubelet.given.clear()
    assert len(outcomes) > 1 or (told == "late" and annotation)


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        (MemlockBounds(ceiling=4096), ErrorCode.MEMLOCK_LIMIT),
        (MemlockBounds(dropped_by="containerd 1.7.0"), ErrorCode.RUNTIME_TOO_OLD),
    ],
)
def test_explain_refuses_the_memlock_of_a_cdi_device_as_the_daemon_does(
    node: Node, bounds: MemlockBounds, code: ErrorCode
) -> None:
    node.specify(spec(NIC, 0, own="{mode: shared, memlock: 1048576}"))
    node.kubelet.give(make_pod(), "main", NIC)
    node.engine.offering.memlock = bounds
    known = replace(facts(node), memlock_ceiling=bounds.ceiling, memlock_dropped_by=bounds.dropped_by)
    explained = explain(manifest({}), known).refusal
    refused = refusal(lambda: node.start(annotations={}))
    assert (refused.code, str(explained)) == (code, str(refused))


def test_a_spec_that_cannot_be_read_is_refused_at_once_and_no_reading_is_waited_for(node: Node) -> None:
    node.specify(spec(NIC, 0, own="{cuont: 1}"))
    node.kubelet.give(make_pod(), "main", NIC)
    reads = node.reads
    assert not isinstance(refusal(lambda: node.start(annotations={})), PlacementError)
    assert node.reads == reads


def manifest(annotations: Mapping[str, str]) -> PodManifest:
    containers = (ContainerManifest(name="main", claims=("nics",)),)
    return PodManifest(kind="Pod", namespace="ml", name="train", annotations=annotations, containers=containers)


def facts(node: Node) -> Facts:
    """What the daemon knows, and what `--cdi-device main=NIC` tells."""
    source = FactsSource(
        facts=Facts(
            node=node.node.current,
            policy=EXCLUSIVE_FIRST,
            taken=node.reservations.taken(),
            annotation_prefix=PREFIX,
            adoption=node.engine.offering.adoption,
            kubelet_tells=bool(node.kubelet.given),
        ),
        sentences=(),
        memlock_reason="",
    )
    return with_registry(source, (f"main={NIC}",), node.registry, "here", (manifest({}),)).facts

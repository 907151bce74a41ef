"""A node with specs, a kubelet that knows what it gave, and containers that bring nodes of others: for tests of what
others gave to containers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.message import Message

from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.registry import SpecFile, resolve
from nri_rdma.decide.policy import Asker
from nri_rdma.doors.nri.plugin import Plugin
from nri_rdma.engine.container import KnownContainer
from nri_rdma.engine.sandbox import Sighting
from nri_rdma.errors import ErrorCode, KubeletError, NriRdmaError
from nri_rdma.model.allocation import ClaimDevice, ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.device import Node as NodeModel
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from nri_rdma.ttrpc.wire import Request
from tests.fakes.kernel import FakeKernel, World
from tests.rig.dra_state import ClaimState, checkpoint
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.model.hardware import RDMA_CM, uverbs
from tests.unit.rigs.attachments import SOON, Rig, add_rail, make_world
from tests.unit.rigs.engine import PREFIX, Daemon, MakeOthers

DRIVER = "rdma.noderesource.dev"
SERVICE = "nri.pkg.api.v1alpha1.Plugin"
VENDOR = "dra.example.com"
NIC = f"{VENDOR}/nic=claim-1"
CLAIM_A, CLAIM_B = f"{VENDOR}/nic=claim-a", f"{VENDOR}/nic=claim-b"
FOREIGN = "sriov.example.org/vf=0000-08-00-2"
OTHER_PATH = "/run/netns/pod-2"
MOVE = "mode: exclusive\nlimits: {hcaHandles: 4}\nmemlock: unlimited\n"
SHARED = "mode: shared\nlimits: {hcaHandles: 4}\n"


class Kubelet:
    """Knows what it was told, or does not answer."""

    is_there = tells = True

    def __init__(self) -> None:
        self.given: dict[str, PodAllocation] = {}
        self.others: PodAllocation | None = None
        """The answer for pods that are not in `given`."""
        self.is_late = False
        self.asked = 0
        self.claims: dict[str, ClaimState] = {}
        """By uid: what its checkpoint has."""
        self.written = b""
        """What its checkpoint has instead."""
        self.is_unreadable = False
        """Whether its checkpoint cannot be read."""

    def give(self, pod: Pod, container: str, *names: str, resources: tuple[str, ...] = ()) -> None:
        claim = ClaimDevice(
            namespace=pod.namespace, claim="nics", driver=VENDOR, pool="p", device="d", cdi_devices=names
        )
        before = self.given.get(str(pod), PodAllocation()).containers
        item = ContainerAllocation(
            name=container,
            claims=(claim,) if names else (),
            resources=tuple(DeviceIds(resource=name, ids=("0",)) for name in resources),
        )
        self.given[str(pod)] = PodAllocation(containers=(*before, item))

    def give_ids(self, pod: str, container: str, resource: str, *ids: str) -> None:
        """Devices of a plugin, to a container of the pod NAMESPACE/NAME."""
        before = self.given.get(pod, PodAllocation()).containers
        item = ContainerAllocation(name=container, resources=(DeviceIds(resource=resource, ids=ids),))
        self.given[pod] = PodAllocation(containers=(*before, item))

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        self.asked += 1
        if self.is_late:
            raise KubeletError(ErrorCode.KUBELET_LATE, "no answer", hint="wait")
        return self.given.get(f"{namespace}/{name}", self.others)

    def claim(self, *names: str, pods: tuple[Pod, ...], uid: str = "c1") -> None:
        """A claim of our driver with these CDI devices, that these pods have."""
        uids = tuple(pod.uid for pod in pods)
        self.claims[uid] = ClaimState(uid=uid, name=uid, pods=uids, cdi_devices={DRIVER: names})

    def checkpoint(self) -> bytes:
        if self.is_unreadable:
            raise KubeletError(ErrorCode.KUBELET_STATE, "the checkpoint cannot be read", hint="wait")
        return self.written or checkpoint(self.claims.values())


class Node(Daemon):
    """With specs, a kubelet, and containers that bring nodes."""

    hidden: frozenset[str] = frozenset()
    """RDMA devices that the host does not see, because they are in a pod's namespace."""

    def __init__(self, rig: Rig, make_others: MakeOthers | None = None) -> None:
        self.before_read: Callable[[], None] = lambda: None
        super().__init__(rig, make_others)
        self.rdma_cm = RDMA_CM
        self.node.refresh()
        self.kubelet = Kubelet()
        self.engine.kubelet.kubelet = self.kubelet

    def specify(self, *specs: dict[str, object]) -> None:
        files = [
            SpecFile(
                file=f"/cdi/{number}.json", priority=0, spec=parse(json.dumps(spec).encode(), f"/cdi/{number}.json")
            )
            for number, spec in enumerate(specs)
        ]
        self.registry = resolve(files)
        self.engine.specs.read_again()

    def create(
        self,
        container: str = "main",
        *numbers: int,
        pod: Pod | None = None,
        cdi: tuple[str, ...] = (),
        is_privileged: bool = False,
        net_devices: frozenset[str] = frozenset(),
        annotations: Mapping[str, str] | None = None,
        seconds: float = SOON,
    ) -> ContainerEdits:
        """CreateContainer of a container that has the uverbs nodes of these numbers already."""
        pod = pod or make_pod()
        nodes = (*map(uverbs, numbers), *([RDMA_CM] if numbers else []))
        devices = {node.path: (node.major, node.minor) for node in nodes}
        made = KnownContainer(
            pod=pod,
            name=container,
            annotations=annotations or {},
            asker=Asker(namespace=pod.namespace, host_network=not pod.netns_path),
            devices=devices,
            cdi_devices=cdi,
            is_privileged=is_privileged,
            net_devices=net_devices,
        )
        return self.engine.create_container(made, time.monotonic() + seconds)

    def seen(self) -> list[Sighting]:
        return list(self.engine.sandboxes.sightings())

    def _read(self) -> NodeModel:
        self.before_read()
        node = super()._read()
        return replace(node, devices=tuple(device for device in node.devices if device.name not in self.hidden))


class Calls:
    """A runtime's calls to the plugin of a node, as protobuf. They raise what the runtime is told."""

    def __init__(self, node: Node) -> None:
        self._plugin = Plugin(node.engine, node.rig.spans, lambda _runtime: None)

    def run(self, pod: nri.PodSandbox) -> None:
        self._call("RunPodSandbox", nri.RunPodSandboxRequest(pod=pod))

    def create(self, pod: nri.PodSandbox, container: nri.Container, seconds: float = SOON) -> nri.ContainerAdjustment:
        answer = self._call("CreateContainer", nri.CreateContainerRequest(pod=pod, container=container), seconds)
        return nri.CreateContainerResponse.FromString(answer).adjust

    def end(self, pod: nri.PodSandbox) -> None:
        """StopPodSandbox and RemovePodSandbox."""
        self._call("StopPodSandbox", nri.StopPodSandboxRequest(pod=pod))
        self._call("RemovePodSandbox", nri.RemovePodSandboxRequest(pod=pod))

    def _call(self, method: str, message: Message, seconds: float = SOON) -> bytes:
        call = ttrpc.Request(service=SERVICE, method=method, payload=message.SerializeToString())
        return self._plugin.answer(Request(1, call, int(seconds * 1e9)))


def sandbox_message(pod: Pod, annotations: Mapping[str, str] | None = None) -> nri.PodSandbox:
    """The pod as the runtime tells it."""
    made = nri.PodSandbox(
        id=pod.sandbox_id, uid=pod.uid, name=pod.name, namespace=pod.namespace, annotations=annotations or {}
    )
    if pod.netns_path:
        made.linux.namespaces.add(type="network", path=pod.netns_path)
    return made


def container_message(
    name: str, *numbers: int, cdi: tuple[str, ...] = (), annotations: Mapping[str, str] | None = None
) -> nri.Container:
    """A container that has the uverbs nodes of these numbers, as the runtime tells it."""
    made = nri.Container(name=name, annotations=annotations or {})
    for cdi_device in cdi:
        made.CDI_devices.add(name=cdi_device)
    for node in (*map(uverbs, numbers), *([RDMA_CM] if numbers else [])):
        made.linux.devices.add(path=node.path, type="c", major=node.major, minor=node.minor)
    return made


def spec(
    name: str, *numbers: int, keys: str | None = None, own: str | None = None, **edits: object
) -> dict[str, object]:
    """A spec with one device, that has the uverbs nodes of these numbers; `keys` stand on the spec, `own` on it."""
    kind, _, device = name.partition("=")
    nodes: list[dict[str, object]] = [{"path": uverbs(number).path} for number in numbers]
    nodes.append({"path": RDMA_CM.path, "type": "c", "major": RDMA_CM.major, "minor": RDMA_CM.minor})
    item: dict[str, object] = {"name": device, "containerEdits": {"deviceNodes": nodes, **edits}}
    if own is not None:
        item["annotations"] = {PREFIX: own}
    made: dict[str, object] = {"cdiVersion": "1.1.0", "kind": kind, "devices": [item]}
    if keys is not None:
        made["annotations"] = {PREFIX: keys}
    return made


@pytest.fixture
def world() -> World:
    made = make_world()
    add_rail(made, "rail1")
    made.add_namespace(OTHER_PATH)
    for path in (POD_PATH, OTHER_PATH):
        pod = made.namespace(path)
        assert pod is not None
        made.add_link(pod, "eth0", up=True)
    return made


@pytest.fixture
def node(world: World, tmp_path: Path) -> Iterator[Node]:
    with daemon_on(world, tmp_path) as made:
        yield made


@contextmanager
def daemon_on(
    world: World, state: Path, *specs: dict[str, object], make_others: MakeOthers | None = None
) -> Iterator[Node]:
    """A daemon that starts on this world, with the journal that an earlier one left in `state`."""
    rig = Rig(state=state, world=world, resolve=lambda known: known)
    try:
        made = Node(rig, make_others)
        made.specify(*specs)
        unreadable = rig.sandboxes.recover(lambda record: made.reservations.hold(record.key, record.holdings))
        assert unreadable == ()
        yield made
    finally:
        rig.close()


def cdi_devices(node: Node, sandbox_id: str) -> list[str]:
    """What the sandbox has attachments for."""
    return sorted(name for it in node.rig.sandboxes.of(sandbox_id) for name in it.now.cdi_devices)


def refusal(work: Callable[[], object]) -> NriRdmaError:
    with pytest.raises(NriRdmaError) as caught:
        work()
    return caught.value


def on_host(world: World) -> set[str]:
    """The netdevs that are on the host."""
    kernel = FakeKernel(world)
    return {link.name for link in kernel.links(kernel.host)}


def names(edits: ContainerEdits) -> list[str]:
    return [name for name, _ in edits.env]

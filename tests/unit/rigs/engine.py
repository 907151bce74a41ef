"""An engine on a fake kernel, wired as the daemon does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.liveness import NoProcesses
from nri_rdma.attach.states import State
from nri_rdma.cdi.registry import Registry
from nri_rdma.decide.inventory import assemble
from nri_rdma.decide.policy import Asker
from nri_rdma.engine.container import NOTHING_REQUESTED, KnownContainer
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.kubelet import Kubelet
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.reservations import Reservations
from nri_rdma.engine.specs import Read, SpecCache
from nri_rdma.host.limits import ContainerLimits
from nri_rdma.model.device import CharDevice, DeviceId, Node, RdmaNetns, Scan
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import PodRequest
from nri_rdma.model.waits import Waits
from nri_rdma.text.annotations import parse_pod_request
from tests.fakes.kernel import FakeKernel
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import make_device, make_pod
from tests.unit.model.hardware import uverbs
from tests.unit.rigs.attachments import BLOCKING, SOON, Rig
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

PREFIX = "rdma.noderesource.dev"
ONE = {f"{PREFIX}/pod": "1"}
AWAITS_RETRY = {State.UNDO_PAUSED, State.RELEASE_PAUSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Who tells a daemon of devices that others gave to containers."""

    specs: SpecCache
    kubelet: Kubelet | None = None
    rereads: tuple[Read, ...] = ()


MakeOthers: TypeAlias = "Callable[[Daemon], Others]"
"""Makes these for a daemon whose node is there already."""


RAILS = tuple(f"rail{number}" for number in range(4))


class Daemon:
    """An engine wired as daemon.py does, on a fake kernel."""

    def __init__(
        self,
        rig: Rig,
        make_others: MakeOthers | None = None,
        waits: Waits = BLOCKING,
        limits: ContainerLimits | None = None,
    ) -> None:
        self.rig = rig
        self.reads = 0
        self.broken: Exception | None = None
        self.rdma_cm: CharDevice | None = None
        self.reservations = Reservations()
        self.registry = Registry(devices={})
        """The CDI specs of the node; `specify` gives it others."""
        self.node = NodeCache(self._read)
        self.cgroups = rig.state / "cgroup"
        others = (make_others or make_plain_others)(self)
        self.node.on_read.append(others.specs.read_again)
        self.engine = Engine(
            node=self.node,
            policy=EXCLUSIVE_FIRST,
            reservations=self.reservations,
            specs=others.specs,
            kubelet=others.kubelet,
            rereads=others.rereads,
            attachments=rig.sandboxes,
            workers=rig.workers,
            readers=rig.workers,
            spans=rig.spans,
            limits=limits or ContainerLimits(self.cgroups, NoProcesses()),
            prefix=PREFIX,
            waits=waits,
        )
        rig.on_gone = self._gone

    def start(
        self,
        pod: Pod | None = None,
        annotations: Mapping[str, str] = ONE,
        seconds: float = SOON,
    ) -> None:
        pod = pod or make_pod()
        asker = Asker(namespace=pod.namespace, host_network=not pod.netns_path)
        try:
            self.engine.run_pod(self.engine.start_of(pod, annotations, asker), time.monotonic() + seconds)
        finally:
            self.await_released(pod.sandbox_id)

    def edits(
        self, sandbox_id: str = "sandbox-1", annotations: Mapping[str, str] = ONE, seconds: float = SOON
    ) -> ContainerEdits:
        container = KnownContainer(pod=replace(make_pod(), sandbox_id=sandbox_id), name="main", annotations=annotations)
        return self.engine.create_container(container, time.monotonic() + seconds)

    def stop(self, sandbox_id: str = "sandbox-1", seconds: float = SOON) -> None:
        self.engine.stop_pod(sandbox_id, time.monotonic() + seconds)
        self.await_released(sandbox_id)

    def await_released(self, sandbox_id: str = "sandbox-1") -> None:
        """What comes right after an end, or after an attach that failed: devices that are home are free for others.
        An undo that failed is left to its next attempt."""
        released = self.rig.sandboxes.being_released()
        home = [it for it in self.rig.sandboxes.of(sandbox_id) if it.undo_done in released]
        wait_until(lambda: all(it.undo_done.done() or it.now.state in AWAITS_RETRY for it in home), "the release", SOON)

    def sandbox(self, sandbox_id: str = "sandbox-1") -> Attachment:
        found = self.rig.sandboxes.get(sandbox_id)
        assert found is not None
        return found

    def starting(self, container: str = "main", cgroups_path: str = "/pod/main") -> None:
        self.engine.start_container("sandbox-1", container, cgroups_path, container_id=container)

    def make_cgroup(self, path: str = "pod/main") -> Path:
        """A cgroup that can be limited, as runc makes it, beside that of the pod's own process; its rdma.max."""
        folder = self.cgroups / path
        for made in (folder, folder.with_name("sandbox-1")):
            made.mkdir(parents=True, exist_ok=True)
            (made / "cgroup.procs").write_text("4711\n")
            (made / "rdma.peak").touch()  # a kernel that frees limits, so nobody looks for the process
            (made / "rdma.max").write_text("")
        return folder / "rdma.max"

    @property
    def holders(self) -> set[DeviceId]:
        return set(self.reservations.taken())

    def _read(self) -> Node:
        self.reads += 1
        if self.broken is not None:
            raise self.broken
        kernel = FakeKernel(self.rig.world)
        devices = tuple(
            replace(make_device(f"mlx5_{number}", ()), index=number, char_devices=(uverbs(number),))
            for number in range(len(RAILS))
        )
        scan = Scan(
            devices=devices,
            netdev_names={device.id: (rail,) for device, rail in zip(devices, RAILS, strict=True)},
            gpus=(),
            rdma_cm=self.rdma_cm,
            rdma_netns=RdmaNetns.NONE,
        )
        node = assemble(scan, kernel.host_use(RAILS), None, rdma_cgroup=True)
        held = self.reservations.taken()
        return replace(node, devices=tuple(device for device in node.devices if device.netdevs or device.id in held))

    def _gone(self, sandbox_id: str) -> None:
        self.node.refresh()
        self.reservations.release(sandbox_id)


def requested(annotations: Mapping[str, str]) -> PodRequest:
    """The request of a pod with these annotations."""
    return parse_pod_request(annotations, PREFIX) or NOTHING_REQUESTED


def make_plain_others(daemon: Daemon) -> Others:
    """One that takes the daemon's registry for complete."""
    return Others(specs=SpecCache(node=lambda: daemon.node.current, registry=lambda: daemon.registry, prefix=PREFIX))

"""A runtime's calls to the daemon's own handlers, as protobuf, and what it reads from the answers.

Between this and the node's hardware all is the daemon's: only kernel and socket are not there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.message import Message

from nri_rdma.commands.explain.explanation import ExplainedContainer
from nri_rdma.doors.nri.plugin import Plugin
from nri_rdma.model.edits import RDMA_MAX, ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import UNLIMITED
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from nri_rdma.ttrpc.wire import Request
from tests.unit.rigs.inside_daemon import InsideDaemon

SERVICE = "nri.pkg.api.v1alpha1.Plugin"
SOON = 20.0
PATIENCE_MS = 60_000
"""What the runtime says that it waits, so that no test depends on the speed of its machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """What a container has of an answer: nodes as path, major and minor; `rdma_max` line by line."""

    nodes: tuple[tuple[str, int, int], ...]
    env: Mapping[str, str]
    memlock: int | None
    rdma_max: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of the nodes."""
        return [path.rpartition("/")[2] for path, _, _ in self.nodes]


NOTHING = Got(nodes=(), env={}, memlock=None, rdma_max=())


def of_explained(item: ExplainedContainer) -> Got:
    """The same of what `explain` says."""
    return Got(
        nodes=tuple((char.path, char.major, char.minor) for char in item.char_devices),
        env=item.env,
        memlock=UNLIMITED if item.memlock == "unlimited" else item.memlock if isinstance(item.memlock, int) else None,
        rdma_max=tuple(item.unified.get(RDMA_MAX, "").splitlines()),
    )


def of_edits(edits: ContainerEdits) -> Got:
    """The same of the engine's edits."""
    return Got(
        nodes=tuple((char.path, char.major, char.minor) for char in edits.char_devices),
        env=dict(edits.env),
        memlock=edits.memlock,
        rdma_max=edits.rdma_max,
    )


class Refusals:
    """Remembers what it is told of refused sandboxes of which the runtime leaves something."""

    def __init__(self) -> None:
        self.left: list[Pod] = []
        self.known: set[str] = set()

    def refused(self, pod: Pod) -> None:
        self.left.append(pod)

    def listed(self, sandbox_ids: Collection[str]) -> None:
        self.known = set(sandbox_ids)


class Handlers:
    """One connection of a runtime that has been configured and synchronized. Calls raise what the runtime is told."""

    def __init__(self, inside: InsideDaemon, version: str = "v2.1.9") -> None:
        self.inside = inside
        self.refusals = Refusals()
        self._plugin = Plugin(inside.engine, inside.spans, lambda _runtime: None, refusals=self.refusals)
        configured = nri.ConfigureRequest(
            runtime_name="containerd", runtime_version=version, request_timeout=PATIENCE_MS
        )
        self._call("Configure", configured)
        self._call("Synchronize", nri.SynchronizeRequest())

    def synchronize(self, *sandbox_ids: str, more: bool = False) -> None:
        """The runtime tells of sandboxes that ask for nothing."""
        pods = [nri.PodSandbox(id=it, uid=it, name=it, namespace="default") for it in sandbox_ids]
        self._call("Synchronize", nri.SynchronizeRequest(pods=pods, more=more))

    def tell(self, pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container]) -> None:
        """The runtime connects anew, and tells of these."""
        self._call("Synchronize", nri.SynchronizeRequest(pods=pods, containers=containers))

    def run_pod(self, manifest: PodManifest) -> nri.PodSandbox:
        """RunPodSandbox of such a pod, and the end of its attach."""
        pod = nri.PodSandbox(
            id=f"sandbox-{manifest.name}",
            uid=f"uid-{manifest.name}",
            name=manifest.name,
            namespace=manifest.namespace,
            runtime_handler=manifest.runtime_class,
            annotations=manifest.annotations,
            labels=dict(manifest.labels),
        )
        if not manifest.host_network:
            path = f"/run/netns/{manifest.name}"
            namespace = self.inside.world.add_namespace(path)
            for interface in ("lo", "eth0"):
                self.inside.world.add_link(namespace, interface, up=True)
            pod.linux.namespaces.add(type="network", path=path)
        self._call("RunPodSandbox", nri.RunPodSandboxRequest(pod=pod))
        sandbox = self.inside.sandboxes.get(pod.id)
        if sandbox is not None:
            sandbox.attach_done.result(SOON)
        self.inside.read_again()
        return pod

    def create(
        self,
        pod: nri.PodSandbox,
        container: ContainerManifest,
        *,
        nodes: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        env: Collection[str] = (),
        annotations: Mapping[str, str] = MappingProxyType({}),
        hook: tuple[str, ...] = (),
    ) -> Got:
        """CreateContainer and StartContainer: what it is answered, and what is written for it then. `nodes` are device
        nodes and `env` variables that it has from others, `annotations` those that the kubelet gave to it; `hook` is
        the path and the arguments of a createRuntime hook."""
        message = nri.Container(id=f"{pod.id}-{container.name}", pod_sandbox_id=pod.id, name=container.name)
        message.env.extend(f"{name}=mine" for name in sorted(container.env))
        message.env.extend(env)
        message.annotations.update(annotations)
        if hook:
            message.hooks.create_runtime.add(path=hook[0], args=["nri-rdma-hook", *hook[1:]])
        for path, (major, minor) in nodes.items():
            message.linux.devices.add(path=path, type="c", major=major, minor=minor)
        if container.privileged:
            message.linux.resources.devices.add(allow=True, access="rwm")
        message.linux.cgroups_path = f"/{pod.id}/{message.id}"
        if self.inside.node.rdma_cgroup:
            pods = f"/{pod.id}/{pod.id}"  # of the pod's own process, as runc makes it
            is_first = not self.inside.cgroup_file(pods, "rdma.max").exists()
            self.inside.make_cgroups(message.linux.cgroups_path, *([pods] if is_first else []))
        answer = nri.CreateContainerResponse.FromString(
            self._call("CreateContainer", nri.CreateContainerRequest(pod=pod, container=message))
        )
        self._call("StartContainer", nri.StartContainerRequest(pod=pod, container=message))
        return self._got(answer.adjust, message.linux.cgroups_path)

    def stop_pod(self, pod: nri.PodSandbox) -> None:
        """StopPodSandbox and RemovePodSandbox, until its devices are free for others."""
        self._call("StopPodSandbox", nri.StopPodSandboxRequest(pod=pod))
        self._call("RemovePodSandbox", nri.RemovePodSandboxRequest(pod=pod))
        self.inside.await_releases()
        self.inside.read_again()

    def _got(self, adjust: nri.ContainerAdjustment, cgroups_path: str) -> Got:
        """Of several limits the runtime is told the first, and the start writes all."""
        told = tuple(adjust.linux.resources.unified.get("rdma.max", "").splitlines())
        file = self.inside.cgroup_file(cgroups_path, "rdma.max")
        written = tuple(file.read_text().splitlines()) if file.exists() else ()
        assert written[:1] in {(), told}
        limits = {item.type: item.soft for item in adjust.rlimits}
        assert [item.soft for item in adjust.rlimits] == [item.hard for item in adjust.rlimits]
        return Got(
            nodes=tuple((device.path, device.major, device.minor) for device in adjust.linux.devices),
            env={entry.key: entry.value for entry in adjust.env},
            memlock=limits.pop("RLIMIT_MEMLOCK", None),
            rdma_max=written or told,
        )

    def _call(self, method: str, message: Message) -> bytes:
        call = ttrpc.Request(service=SERVICE, method=method, payload=message.SerializeToString())
        return self._plugin.answer(Request(1, call, 0))

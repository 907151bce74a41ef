"""A CRI client: pods and containers as the kubelet asks a runtime for them.

The same call with the same arguments sends the same request, so a test can repeat what was refused (give the uid then;
without one every call makes a new pod). Errors carry the runtime's whole text.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import grpc

from tests.rig.dial import dial
from tests.rig.image import IMAGE
from tests.rig.pb import cri_pb2 as pb

FOREVER = ("/bin/sleep", "1000000000")
_RUNTIME_SERVICE = "runtime.v1.RuntimeService"
_IMAGE_SERVICE = "runtime.v1.ImageService"
_SECONDS = 30.0
_NOT_READY = "network is not ready"
"""The text at which the kubelet comes again after 1 to 1.5 s (pkg/kubelet/pod_workers.go) instead of 10 to 15."""
_UNREAD = "unresolvable CDI devices"
"""What CRI-O says of a device whose spec was written a moment ago."""
_AGAIN_S = 1.0
_CONDITIONS = frozenset({"RuntimeReady", "NetworkReady"})
"""What the kubelet waits for; containerd 2.2 has further ones that only warn."""
_NOTHING: Mapping[str, str] = {}


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


class CriError(Exception):
    """What the runtime answered instead: its gRPC code by name and its text, unshortened."""

    def __init__(self, method: str, code: str, text: str) -> None:
        super().__init__(f"{method}: {code}: {text}")
        self.method = method
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A pod sandbox that runs or ran."""

    id: str
    name: str
    uid: str
    namespace: str
    # CreateContainer sends the pod's configuration again.
    config: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container that was created."""

    id: str
    name: str
    sandbox_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command in a container printed, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """A sandbox as the runtime sees it; netns is None in the host's network."""

    ready: bool
    ip: str
    pid: int
    netns: Path | None
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """A container as the runtime sees it; spec is its OCI configuration."""

    state: str
    exit_code: int
    reason: str
    message: str
    pid: int
    annotations: Mapping[str, str]
    spec: Mapping[str, Any] = field(repr=False)


class Cri:
    """A connection to a runtime's CRI socket."""

    def __init__(self, socket: Path, *, cgroup_parent: str = "", log_directory: Path | None = None) -> None:
        self._channel = dial(socket)
        self._cgroup_parent = cgroup_parent
        self._log_directory = log_directory
        self.traceparent = ""
        """The W3C context of the caller's span, which the calls carry: a kubelet that is traced sends one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; pods stay."""
        self._channel.close()

    def version(self, *, seconds: float = _SECONDS) -> str:
        """The runtime's name and version, for instance `containerd 2.1.9`."""
        answer = self._call("Version", pb.VersionRequest(), pb.VersionResponse, seconds=seconds)
        return f"{answer.runtime_name} {answer.runtime_version}"

    def unready(self, *, seconds: float = _SECONDS) -> tuple[str, ...]:
        """What the runtime still misses before it takes pods, as sentences; empty when it is ready."""
        answer = self._call("Status", pb.StatusRequest(), pb.StatusResponse, seconds=seconds)
        conditions = [it for it in answer.status.conditions if it.type in _CONDITIONS]
        return tuple(f"{it.type}: {it.reason} {it.message}" for it in conditions if not it.status)

    def has_image(self, name: str = IMAGE) -> bool:
        """Whether the runtime can start containers from that image."""
        request = pb.ImageStatusRequest(image=pb.ImageSpec(image=name))
        answer = self._call("ImageStatus", request, pb.ImageStatusResponse, service=_IMAGE_SERVICE)
        return bool(answer.image.id)

    def run_pod(
        self,
        name: str,
        *,
        annotations: Mapping[str, str] = _NOTHING,
        labels: Mapping[str, str] = _NOTHING,
        uid: str | None = None,
        namespace: str = "default",
        attempt: int = 0,
        host_network: bool = False,
        runtime_handler: str = "",
        seconds: float = _SECONDS,
    ) -> Sandbox:
        """Creates and starts a pod sandbox."""
        uid = uid or str(uuid.uuid4())
        network = pb.NODE if host_network else pb.POD
        namespaces = pb.NamespaceOption(network=network, pid=pb.CONTAINER)
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace=namespace, attempt=attempt),
            hostname="" if host_network else name,
            labels=_kubelet_labels(name, uid, namespace) | dict(labels),
            annotations=dict(annotations),
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=_pod_cgroup(self._cgroup_parent, uid),
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=namespaces),
            ),
        )
        if self._log_directory is not None:
            config.log_directory = str(self._log_directory / f"{namespace}_{name}_{uid}")
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler)
        answer = self._call("RunPodSandbox", request, pb.RunPodSandboxResponse, seconds=seconds)
        serialized = bytes(config.SerializeToString())
        return Sandbox(id=str(answer.pod_sandbox_id), name=name, uid=uid, namespace=namespace, config=serialized)

    def create_container(
        self,
        sandbox: Sandbox,
        name: str,
        command: Sequence[str] = FOREVER,
        *,
        env: Mapping[str, str] = _NOTHING,
        devices: Sequence[str] = (),
        cdi_devices: Sequence[str] = (),
        mounts: Mapping[str, str] = _NOTHING,
        read_only: bool = False,
        annotations: Mapping[str, str] = _NOTHING,
        attempt: int = 0,
        privileged: bool = False,
        add_capabilities: Sequence[str] = (),
        image: str = IMAGE,
        user: int | None = None,
        seconds: float = _SECONDS,
        retries: bool = True,
    ) -> Container:
        """Creates a container; devices are host paths, mounts host path to container path, with `read_only` as a
        kubelet mounts `readOnly`; user None is the image's.

        Comes again while the network is not ready or the runtime has not read a new CDI spec, as the kubelet does, for
        `seconds` in all; with `retries` False that is an error like any other.
        """
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=image, user_specified_image=image),
            command=list(command),
            envs=[pb.KeyValue(key=key, value=value) for key, value in env.items()],
            mounts=[
                pb.Mount(host_path=host, container_path=inside, readonly=read_only) for host, inside in mounts.items()
            ],
            devices=[pb.Device(host_path=path, container_path=path, permissions="rwm") for path in devices],
            CDI_devices=[pb.CDIDevice(name=device) for device in cdi_devices],
            labels=_kubelet_labels(sandbox.name, sandbox.uid, sandbox.namespace)
            | {"io.kubernetes.container.name": name},
            annotations=dict(annotations),
            linux=pb.LinuxContainerConfig(
                security_context=pb.LinuxContainerSecurityContext(
                    privileged=privileged,
                    run_as_user=None if user is None else pb.Int64Value(value=user),
                    capabilities=pb.Capability(add_capabilities=list(add_capabilities)),
                    namespace_options=pb.NamespaceOption(pid=pb.CONTAINER),
                )
            ),
        )
        if self._log_directory is not None:
            config.log_path = f"{name}_{attempt}.log"
        request = pb.CreateContainerRequest(
            pod_sandbox_id=sandbox.id,
            config=config,
            sandbox_config=pb.PodSandboxConfig.FromString(sandbox.config),
        )
        until = time.monotonic() + (seconds if retries else 0.0)
        while True:
            try:
                answer = self._call("CreateContainer", request, pb.CreateContainerResponse, seconds=seconds)
            except CriError as error:
                if not any(it in error.text for it in (_NOT_READY, _UNREAD)) or time.monotonic() > until:
                    raise
                time.sleep(_AGAIN_S)
            else:
                return Container(id=str(answer.container_id), name=name, sandbox_id=sandbox.id)

    def start(self, container: Container, *, seconds: float = _SECONDS) -> None:
        """Starts a created container."""
        request = pb.StartContainerRequest(container_id=container.id)
        self._call("StartContainer", request, pb.StartContainerResponse, seconds=seconds)

    def run_container(
        self,
        sandbox: Sandbox,
        name: str,
        command: Sequence[str] = FOREVER,
        *,
        env: Mapping[str, str] = _NOTHING,
        devices: Sequence[str] = (),
        annotations: Mapping[str, str] = _NOTHING,
    ) -> Container:
        """Creates and starts a container."""
        container = self.create_container(sandbox, name, command, env=env, devices=devices, annotations=annotations)
        self.start(container)
        return container

    def exec(self, container: Container, command: Sequence[str], *, seconds: int = 10) -> ExecResult:
        """Runs a command in a container to its end; a non-zero exit code is an answer, not an error."""
        request = pb.ExecSyncRequest(container_id=container.id, cmd=list(command), timeout=seconds)
        answer = self._call("ExecSync", request, pb.ExecSyncResponse, seconds=seconds + 5.0)
        return ExecResult(
            stdout=answer.stdout.decode(errors="replace"),
            stderr=answer.stderr.decode(errors="replace"),
            exit_code=int(answer.exit_code),
        )

    def stop_container(self, container: Container, *, grace_seconds: int = 0) -> None:
        """Stops a container, at once by default; stopping a stopped one is no error."""
        request = pb.StopContainerRequest(container_id=container.id, timeout=grace_seconds)
        self._call("StopContainer", request, pb.StopContainerResponse, seconds=grace_seconds + _SECONDS)

    def remove_container(self, container: Container, *, seconds: float = _SECONDS) -> None:
        """Removes a container, running or not."""
        request = pb.RemoveContainerRequest(container_id=container.id)
        self._call("RemoveContainer", request, pb.RemoveContainerResponse, seconds=seconds)

    def stop_pod(self, sandbox: Sandbox, *, seconds: float = _SECONDS) -> None:
        """Stops a sandbox and its containers, and gives its network back."""
        request = pb.StopPodSandboxRequest(pod_sandbox_id=sandbox.id)
        self._call("StopPodSandbox", request, pb.StopPodSandboxResponse, seconds=seconds)

    def remove_pod(self, sandbox: Sandbox, *, seconds: float = _SECONDS) -> None:
        """Removes a sandbox, stopped or not."""
        request = pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
        self._call("RemovePodSandbox", request, pb.RemovePodSandboxResponse, seconds=seconds)

    def delete_pod(self, sandbox: Sandbox, *, seconds: float = _SECONDS) -> None:
        """Stops and removes a sandbox as the kubelet does: its containers go before it.

        containerd since 2.0 would remove them with it, and hangs for good when a plugin registers just then: it takes
        the lock that keeps plugins away a second time (BlockPluginSync in RemovePodSandbox and in RemoveContainer).
        """
        self.stop_pod(sandbox, seconds=seconds)
        for container in self.containers(sandbox, seconds=seconds):
            self.remove_container(container, seconds=seconds)
        self.remove_pod(sandbox, seconds=seconds)

    def pods(self) -> tuple[Sandbox, ...]:
        """Every sandbox, ready or not; containers cannot be created from these (the runtime keeps no request)."""
        answer = self._call("ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse)
        return tuple(
            Sandbox(id=it.id, name=it.metadata.name, uid=it.metadata.uid, namespace=it.metadata.namespace)
            for it in answer.items
        )

    def containers(self, sandbox: Sandbox | None = None, *, seconds: float = _SECONDS) -> tuple[Container, ...]:
        """Every container, of one sandbox or of all."""
        wanted = pb.ContainerFilter(pod_sandbox_id=sandbox.id if sandbox else "")
        request = pb.ListContainersRequest(filter=wanted)
        answer = self._call("ListContainers", request, pb.ListContainersResponse, seconds=seconds)
        return tuple(
            Container(id=it.id, name=it.metadata.name, sandbox_id=it.pod_sandbox_id) for it in answer.containers
        )

    def pod_status(self, sandbox: Sandbox) -> SandboxStatus:
        """The state of one sandbox."""
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id, verbose=True)
        answer = self._call("PodSandboxStatus", request, pb.PodSandboxStatusResponse)
        info = json.loads(answer.info["info"])
        return SandboxStatus(
            ready=answer.status.state == pb.SANDBOX_READY,
            ip=answer.status.network.ip,
            pid=int(info.get("pid", 0)),
            netns=_netns(info.get("runtimeSpec") or {}),
            annotations=dict(answer.status.annotations),
        )

    def container_status(self, container: Container) -> ContainerStatus:
        """The state of one container."""
        request = pb.ContainerStatusRequest(container_id=container.id, verbose=True)
        answer = self._call("ContainerStatus", request, pb.ContainerStatusResponse)
        info = json.loads(answer.info["info"])
        status = answer.status
        return ContainerStatus(
            state=pb.ContainerState.Name(status.state).removeprefix("CONTAINER_").lower(),
            exit_code=int(status.exit_code),
            reason=status.reason,
            message=status.message,
            pid=int(info.get("pid", 0)),
            annotations=dict(status.annotations),
            spec=info.get("runtimeSpec") or {},
        )

    def _call(
        self,
        method: str,
        request: _Message,
        response: Any,
        *,
        seconds: float = _SECONDS,
        service: str = _RUNTIME_SERVICE,
    ) -> Any:
        call = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        try:
            return call(request, timeout=seconds, metadata=[("traceparent", self.traceparent)] * bool(self.traceparent))
        except grpc.RpcError as error:
            raise CriError(method, error.code().name, error.details()) from error


def _kubelet_labels(name: str, uid: str, namespace: str) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.uid": uid,
        "io.kubernetes.pod.namespace": namespace,
    }


def _pod_cgroup(parent: str, uid: str) -> str:
    """As the kubelet names it with either of its cgroup drivers: below a slice the pod has a slice, else a folder."""
    if parent.endswith(".slice"):
        return f"{parent.removesuffix('.slice')}-pod{uid.replace('-', '_')}.slice"
    return f"{parent}/pod{uid}" if parent else ""


def _netns(spec: Mapping[str, Any]) -> Path | None:
    for namespace in spec.get("linux", {}).get("namespaces", ()):
        if namespace["type"] == "network" and "path" in namespace:
            return Path(namespace["path"])
    return None

"""What a runtime sends, in the sizes of a real one, as bytes ready for the socket.

Modelled on what containerd 2.1 sent for a pod of a Deployment with a service account, a sidecar's worth of mounts and a
kubelet's environment.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any  # Any: generated messages

from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
ANNOTATION = "rdma.noderesource.dev/pod"
ONE_SHARED = "- name: rails\n  mode: shared\n"
TIMEOUT_S = 2.0
"""A runtime's default for each request."""
FIRST_FRAME_MAX = 4096

_MUX = struct.Struct(">II")
_FRAME = struct.Struct(">IIBB")
_PLUGIN_SERVICE_CONN, _REQUEST = 1, 1
_STREAM_ID_AT = _MUX.size + 4
_ON_THE_WAY_NS = 128_658  # what has passed of the time when the runtime writes
_NAMESPACE = ("containerd-namespace-ttrpc", "k8s.io")
_TRACEPARENT = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


class Call:
    """A call as bytes, made once; `on` puts a stream id into it. In frames as a runtime writes them: the first has at
    most 4096 bytes, a second one the rest."""

    def __init__(self, method: str, message: Any, *, traced: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        request = ttrpc.Request(
            service=PLUGIN_SERVICE,
            method=method,
            payload=message.SerializeToString(),
            timeout_nano=int(timeout_s * 1e9) - _ON_THE_WAY_NS,
        )
        for key, value in (_NAMESPACE, _TRACEPARENT) if traced else (_NAMESPACE,):
            request.metadata.add(key=key, value=value)
        data: bytes = request.SerializeToString()
        frame = _FRAME.pack(len(data), 0, _REQUEST, 0) + data
        first, rest = frame[:FIRST_FRAME_MAX], frame[FIRST_FRAME_MAX:]
        self._bytes = bytearray(_MUX.pack(_PLUGIN_SERVICE_CONN, len(first)) + first)
        if rest:
            self._bytes += _MUX.pack(_PLUGIN_SERVICE_CONN, len(rest)) + rest

    def on(self, stream_id: int) -> bytearray:
        """The bytes to write. The same buffer each time."""
        struct.pack_into(">I", self._bytes, _STREAM_ID_AT, stream_id)
        return self._bytes


def configure(timeout_s: float = TIMEOUT_S) -> Call:
    """Configure, as containerd sends it."""
    return Call(
        "Configure",
        nri.ConfigureRequest(
            runtime_name="containerd",
            runtime_version="v2.1.9",
            registration_timeout=5000,
            request_timeout=int(timeout_s * 1e3),
        ),
    )


def synchronize(pods: Iterable[Any] = (), containers: Iterable[Any] = ()) -> Call:
    """Synchronize of a node with these pods."""
    return Call("Synchronize", nri.SynchronizeRequest(pods=pods, containers=containers))


def run_pod(pod: Any, *, traced: bool = False, timeout_s: float = TIMEOUT_S) -> Call:
    """RunPodSandbox, the way runtimes before NRI 0.12 tell it."""
    event = nri.StateChangeEvent(event=nri.RUN_POD_SANDBOX, pod=pod)
    return Call("StateChange", event, traced=traced, timeout_s=timeout_s)


def create_container(
    pod: Any, *, traced: bool = False, timeout_s: float = TIMEOUT_S, cdi_devices: Iterable[str] = ()
) -> Call:
    """CreateContainer, 2.8 KB of it being the message itself."""
    request = nri.CreateContainerRequest(pod=pod, container=container(pod))
    for name in cdi_devices:
        request.container.CDI_devices.add(name=name)
    return Call("CreateContainer", request, traced=traced, timeout_s=timeout_s)


def stop_pod(pod: Any, *, timeout_s: float = TIMEOUT_S) -> Call:
    """StopPodSandbox, the way runtimes before NRI 0.12 tell it."""
    return Call("StateChange", nri.StateChangeEvent(event=nri.STOP_POD_SANDBOX, pod=pod), timeout_s=timeout_s)


def remove_pod(pod: Any) -> Call:
    """RemovePodSandbox, the way runtimes before NRI 0.12 tell it."""
    return Call("StateChange", nri.StateChangeEvent(event=nri.REMOVE_POD_SANDBOX, pod=pod))


def start_container(pod: Any) -> Call:
    """StartContainer, the way runtimes before NRI 0.12 tell it."""
    event = nri.StateChangeEvent(event=nri.START_CONTAINER, pod=pod, container=container(pod))
    return Call("StateChange", event)


def pod(number: int, ours: Mapping[str, str] | None = None, netns: str = "") -> Any:
    """A pod's sandbox with ten annotations that are not ours; without `netns` its namespace's path leads nowhere."""
    sandbox_id = f"{number:064x}"
    uid = f"8d4c7d1e-6f0a-4c55-9a39-{number:012x}"
    name = f"trainer-7c9f6d7b5-x{number:04d}"
    return nri.PodSandbox(
        id=sandbox_id,
        name=name,
        uid=uid,
        namespace="training",
        labels={"app": "trainer", "pod-template-hash": "7c9f6d7b5", "job": "llm"},
        annotations={
            "kubernetes.io/config.seen": "2026-01-12T09:41:07.512340021Z",
            "kubernetes.io/config.source": "api",
            "prometheus.io/scrape": "true",
            "prometheus.io/port": "9090",
            "io.kubernetes.cri.container-type": "sandbox",
            "io.kubernetes.cri.sandbox-id": sandbox_id,
            "io.kubernetes.cri.sandbox-name": name,
            "io.kubernetes.cri.sandbox-namespace": "training",
            "io.kubernetes.cri.sandbox-uid": uid,
            "io.kubernetes.cri.sandbox-cpu-shares": "256",
            **(ours or {}),
        },
        linux=nri.LinuxPodSandbox(
            cgroup_parent="/kubepods/burstable",
            namespaces=[
                *(nri.LinuxNamespace(type=kind) for kind in ("pid", "ipc", "uts", "mount")),
                nri.LinuxNamespace(type="network", path=netns or f"/var/run/netns/cni-{uid}"),
            ],
        ),
        pid=4000 + number,
        ips=["10.244.3.17"],
    )


def container(pod: Any, name: str = "trainer") -> Any:
    """A container of that pod: 20 variables, mounts, devices, namespaces, labels."""
    message = nri.Container(
        id=f"{zlib.crc32(name.encode()):08x}{pod.id[8:]}",
        pod_sandbox_id=pod.id,
        name=name,
        labels={
            "io.kubernetes.container.name": name,
            "io.kubernetes.pod.name": pod.name,
            "io.kubernetes.pod.namespace": pod.namespace,
            "io.kubernetes.pod.uid": pod.uid,
        },
        annotations={
            "io.kubernetes.container.hash": "8a2b6d1f",
            "io.kubernetes.container.restartCount": "0",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        },
        args=["/bin/sh", "-c", "exec python -m train --config /etc/train/config.yaml"],
        env=[
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            f"HOSTNAME={pod.name}",
            "WORLD_SIZE=16",
            *(f"MASTER_{key}={value}" for key, value in (("ADDR", "trainer-0"), ("PORT", "29500"))),
            *(f"KUBERNETES_PORT_443_TCP_{key}={value}" for key, value in (("PORT", "443"), ("PROTO", "tcp"))),
            *(f"TRAINER_SERVICE_{key}=10.96.0.{number}" for number, key in enumerate("ABCDEFGHIJKLM")),
        ],
        linux=nri.LinuxContainer(
            namespaces=[
                nri.LinuxNamespace(type=kind, path="" if kind in {"mount", "pid"} else f"/proc/{pod.pid}/ns/{kind}")
                for kind in ("pid", "ipc", "uts", "mount", "network", "cgroup")
            ],
            devices=[
                nri.LinuxDevice(path=f"/dev/{name}", type="c", major=195, minor=minor)
                for minor, name in enumerate(("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"))
            ],
            cgroups_path=f"/kubepods/burstable/pod{pod.uid}/c{pod.id[1:]}",
        ),
    )
    volumes = f"/var/lib/kubelet/pods/{pod.uid}"
    for target, source in (
        ("/etc/hosts", f"{volumes}/etc-hosts"),
        ("/dev/termination-log", f"{volumes}/containers/{name}/3f1c8a90"),
        ("/var/run/secrets/kubernetes.io/serviceaccount", f"{volumes}/volumes/kubernetes.io~projected/token"),
    ):
        message.mounts.add(destination=target, type="bind", source=source, options=["rbind", "rprivate", "rw"])
    for target, kind in (("/proc", "proc"), ("/dev", "tmpfs"), ("/sys", "sysfs")):
        message.mounts.add(destination=target, type=kind, source=kind, options=["nosuid", "noexec", "nodev"])
    message.linux.resources.memory.limit.value = 64 << 30
    message.linux.resources.cpu.shares.value = 4096
    return message

"""NRI messages, between protobuf and our values. Nothing else of the product sees a protobuf message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any  # Any: generated messages

from nri_rdma.decide.gpus import VISIBLE_DEVICES, GpuEvidence
from nri_rdma.model.edits import ENV_PREFIXES, RDMA_MAX, ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.model.userspace import Made
from nri_rdma.pb import nri_pb2 as pb
from nri_rdma.text.shares import GUARD_HOOK

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
NRI_VERSION = "v0.12.5"
"""The version of the interface that our messages are written from."""

_OUR_NAMES = tuple(prefix.encode() for prefix in ENV_PREFIXES)
_LIBRARY_PATH = "LD_LIBRARY_PATH="
_VISIBLE = f"{VISIBLE_DEVICES}="
_ABOUT = ("--pool", "--device", "--resource")
"""The flags of a guard that came with a share, a CDI device or the guard resource, and asks whatever the pod says."""

EVENTS = {
    number: "".join([word.capitalize() for word in name.split("_")])
    for name, number in pb.Event.items()
    if number not in {pb.UNKNOWN, pb.LAST}
}
"""All events of the interface, by number, with the name of their own RPC."""


def event_mask(methods: Collection[str]) -> int:
    """The events among these RPCs, a bit each."""
    return sum(1 << (number - 1) for number, name in EVENTS.items() if name in methods)


def pod_from(message: Any) -> Pod:
    """A PodSandbox; its network namespace is the entry that names a path, if there is one."""
    netns = ""
    for namespace in message.linux.namespaces:
        if namespace.type == "network":
            netns = namespace.path
    return Pod(
        sandbox_id=message.id,
        uid=message.uid,
        name=message.name,
        namespace=message.namespace,
        netns_path=netns,
        pid=message.pid,
    )


def asker_from(message: Any, pod: Pod) -> Asker:
    """Return what rules can know of a PodSandbox; `pod` is the same one. Without a network namespace it is on the
    host's."""
    return Asker(
        namespace=pod.namespace,
        runtime_handler=message.runtime_handler,
        labels=tuple(message.labels.items()),
        host_network=not pod.netns_path,
    )


def container_name(container: Any) -> str:
    """Return a container's name in the pod. Some releases of CRI-O leave the field empty; the kubelet's label has it
    then."""
    name: str = container.name or container.labels.get("io.kubernetes.container.name", "")
    return name


def has_our_names(payload: bytes) -> bool:
    """Tell whether the name of a variable of ours is anywhere in a message: to ask its bytes takes half as long as to
    read an environment of twenty."""
    for prefix in _OUR_NAMES:  # noqa: SIM110 - a loop is half the cost of any() with a generator
        if prefix in payload:
            return True
    return False


def env_names(container: Any) -> frozenset[str]:
    """The environment variables that the container has already, of those that could be ours: others are many."""
    return frozenset([entry.partition("=")[0] for entry in container.env if entry.startswith(ENV_PREFIXES)])


def device_numbers(container: Any) -> Mapping[str, tuple[int, int]]:
    """The device nodes that the container has already: path to major and minor."""
    return {device.path: (device.major, device.minor) for device in container.linux.devices}


def brings_devices(container: Any, majors: Collection[int] | None) -> bool:
    """Tell whether the container may have an RDMA device from others: a device node with one of these major numbers
    (None: they are not known yet)."""
    for device in container.linux.devices:  # noqa: SIM110 - a loop is half the cost of any() with a generator
        if majors is None or device.major in majors:
            return True
    return False


def cdi_devices(container: Any) -> tuple[str, ...]:
    """The CDI devices that were asked for it, each once; containerd tells since 2.3.

    Annotations of CDI are not believed: CRI-O hands the pod's own to its containers, and their author would choose
    devices past every rule."""
    return tuple(dict.fromkeys(device.name for device in container.CDI_devices))


def guarded_pools(container: Any) -> frozenset[str]:
    """Return the pools of our guard among the container's createRuntime hooks."""
    return frozenset(_guarded(container, "--pool"))


def guarded_devices(container: Any) -> tuple[str, ...]:
    """Return the CDI devices of our guard among the container's createRuntime hooks."""
    return tuple(_guarded(container, "--device"))


def has_guard_resource(container: Any) -> bool:
    """Tell whether the guard resource brought our guard to the container."""
    return bool(_guarded(container, "--resource"))


def has_handlers_guard(container: Any) -> bool:
    """Tell whether the container has our guard from its runtime handler, or from CRI-O's folder of hooks."""
    return any("verify" in args and not any(flag in args for flag in _ABOUT) for args in _our_hooks(container))


def _guarded(container: Any, flag: str) -> list[str]:
    return [args[args.index(flag) + 1] for args in _our_hooks(container) if flag in args[:-1]]


def _our_hooks(container: Any) -> list[list[str]]:
    hooks = container.hooks.create_runtime
    return [list(hook.args) for hook in hooks if hook.path.rpartition("/")[2] == GUARD_HOOK]


def is_privileged(container: Any) -> bool:
    """Tell whether a container may use every device of the host: NRI does not say that a container is privileged, but
    the rules of its device cgroup do."""
    return any(
        rule.allow and rule.type in {"", "a"} and not rule.HasField("major") and set(rule.access) >= set("rwm")
        for rule in container.linux.resources.devices
    )


def made_from(container: Any) -> Made:
    """Return where the root of a container is found that is about to start."""
    paths = [entry.partition("=")[2] for entry in container.env if entry.startswith(_LIBRARY_PATH)]
    return Made(
        container_id=container.id,
        pid=container.pid,
        cgroups_path=container.linux.cgroups_path,
        library_path=paths[-1] if paths else "",
    )


def shown_gpus(container: Any) -> GpuEvidence:
    """Return what tells of the GPUs of a container. Of two values of a variable the last counts."""
    visible = [entry for entry in container.env if entry.startswith(_VISIBLE)]
    return GpuEvidence(
        nodes=tuple(device_numbers(container).values()),
        cdi_devices=cdi_devices(container),
        visible=visible[-1].removeprefix(_VISIBLE) if visible else None,
        is_privileged=is_privileged(container),
    )


def net_devices(container: Any) -> frozenset[str]:
    """The host's netdevs that the runtime would move into the container (runtimes with NRI 0.11 tell)."""
    return frozenset(container.linux.net_devices)


def create_response(edits: ContainerEdits, *, whole_rdma_max: bool) -> Any:
    """A CreateContainerResponse with the adjustments; no key occurs twice, which NRI takes for a conflict.

    Of rdma.max it has the first line or, where the start cannot be refused, all of them (docs/adr/0009).
    Fields are set one by one: as keywords of add() they cost a fifth more.
    """
    response = pb.CreateContainerResponse()
    adjust = response.adjust
    add_device, add_env = adjust.linux.devices.add, adjust.env.add
    for node in edits.char_devices:
        device = add_device()
        device.path = node.path
        device.type = "c"
        device.major = node.major
        device.minor = node.minor
        device.file_mode.value = node.mode
        device.uid.value = node.uid
        device.gid.value = node.gid
    for key, value in edits.env:
        entry = add_env()
        entry.key = key
        entry.value = value
    for name in edits.moved_netdevs:
        adjust.linux.net_devices[f"-{name}"].name = ""  # NRI's mark: the runtime does not move it
    if edits.memlock is not None:
        adjust.rlimits.add(type="RLIMIT_MEMLOCK", hard=edits.memlock, soft=edits.memlock)
    if edits.rdma_max:
        lines = edits.rdma_max if whole_rdma_max else edits.rdma_max[:1]
        adjust.linux.resources.unified[RDMA_MAX] = "\n".join(lines)
    return response

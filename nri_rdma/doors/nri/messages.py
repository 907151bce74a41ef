"""Converts NRI's protobuf messages to our values and back. Only this folder handles these messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any  # Any: generated messages

from nri_rdma.decide.gpus import VISIBLE_DEVICES, GpuEvidence
from nri_rdma.model.edits import ENV_PREFIXES, RDMA_MAX, ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.model.userspace import Made
from nri_rdma.pb import nri_pb2 as pb
from nri_rdma.text.share_annotations import GUARD_HOOK

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
NRI_VERSION = "v0.12.5"
"""The release of NRI from which our protobuf definitions were taken."""

_OUR_NAMES = tuple(prefix.encode() for prefix in ENV_PREFIXES)
_LIBRARY_PATH = "LD_LIBRARY_PATH="
_VISIBLE = f"{VISIBLE_DEVICES}="
_ABOUT = ("--pool", "--device", "--resource")
"""Flags with which the guard (an OCI hook that keeps a container from starting without its devices) is told why it was
added: for a pool's share, a CDI device or the guard resource.

With one of them the hook asks the daemon, whatever the pod's annotations say.
"""

EVENTS = {
    number: "".join([word.capitalize() for word in name.split("_")])
    for name, number in pb.Event.items()
    if number not in {pb.UNKNOWN, pb.LAST}
}
"""All NRI events. Each number is mapped to the name of the RPC for that event."""


def event_mask(methods: Collection[str]) -> int:
    """Return the bit mask of the events whose RPCs have these names."""
    return sum(1 << (number - 1) for number, name in EVENTS.items() if name in methods)


def pod_from(message: Any) -> Pod:
    """Return the pod of a PodSandbox message. Its network namespace is "" for a pod on the host's network."""
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
    """Return the facts about a PodSandbox message that rules can match. `pod` is the Pod made from that message."""
    return Asker(
        namespace=pod.namespace,
        runtime_handler=message.runtime_handler,
        labels=tuple(message.labels.items()),
        host_network=not pod.netns_path,
    )


def container_name(container: Any) -> str:
    """Return the container's name in the pod. If the field is empty, as in some releases of CRI-O, the name is taken
    from the kubelet's label."""
    name: str = container.name or container.labels.get("io.kubernetes.container.name", "")
    return name


def has_our_names(payload: bytes) -> bool:
    """Return whether the bytes of a message contain the name of one of our variables.

    Searching the bytes takes half as long as reading an environment of twenty variables.
    """
    for prefix in _OUR_NAMES:  # noqa: SIM110 - a loop is half the cost of any() with a generator
        if prefix in payload:
            return True
    return False


def env_names(container: Any) -> frozenset[str]:
    """Return the names of those environment variables of the container that we might set, too."""
    return frozenset([entry.partition("=")[0] for entry in container.env if entry.startswith(ENV_PREFIXES)])


def device_numbers(container: Any) -> Mapping[str, tuple[int, int]]:
    """Return the container's device nodes: path to major and minor number."""
    return {device.path: (device.major, device.minor) for device in container.linux.devices}


def brings_devices(container: Any, majors: Collection[int] | None) -> bool:
    """Return whether the container has a device node with one of these major numbers. With None, return whether it has
    any device node."""
    for device in container.linux.devices:  # noqa: SIM110 - a loop is half the cost of any() with a generator
        if majors is None or device.major in majors:
            return True
    return False


def cdi_devices(container: Any) -> tuple[str, ...]:
    """Return the CDI devices that were requested for the container, each once. Only containerd 2.3 and later report
    them.

    CDI annotations are ignored: CRI-O copies the pod's annotations to its containers, so a pod author could choose
    devices in spite of all rules.
    """
    return tuple(dict.fromkeys(device.name for device in container.CDI_devices))


def guarded_pools(container: Any) -> frozenset[str]:
    """Return the pools that the container's guard hooks have in their arguments (`--pool`). The guard is an OCI hook
    that keeps a container from starting without its devices."""
    return frozenset(_guarded(container, "--pool"))


def guarded_devices(container: Any) -> tuple[str, ...]:
    """Return the CDI devices that the container's guard hooks have in their arguments (`--device`). The guard is an OCI
    hook that keeps a container from starting without its devices."""
    return tuple(_guarded(container, "--device"))


def has_guard_resource(container: Any) -> bool:
    """Return whether the container has the guard, an OCI hook that keeps it from starting without its devices, because
    its pod requested the guard resource: an extended resource that only adds this hook."""
    return bool(_guarded(container, "--resource"))


def has_handlers_guard(container: Any) -> bool:
    """Return whether the runtime adds the guard, an OCI hook that keeps a container from starting without its devices,
    to all containers of this runtime handler. CRI-O may also read it from its folder of hooks."""
    return any("verify" in args and not any(flag in args for flag in _ABOUT) for args in _our_hooks(container))


def _guarded(container: Any, flag: str) -> list[str]:
    return [args[args.index(flag) + 1] for args in _our_hooks(container) if flag in args[:-1]]


def _our_hooks(container: Any) -> list[list[str]]:
    hooks = container.hooks.create_runtime
    return [list(hook.args) for hook in hooks if hook.path.rpartition("/")[2] == GUARD_HOOK]


def is_privileged(container: Any) -> bool:
    """Return whether a container may use every device of the host. NRI does not report `privileged`, but the rules of
    the device cgroup show it."""
    return any(
        rule.allow and rule.type in {"", "a"} and not rule.HasField("major") and set(rule.access) >= set("rwm")
        for rule in container.linux.resources.devices
    )


def made_from(container: Any) -> Made:
    """Return the facts about a starting container by which its root file system can be found."""
    paths = [entry.partition("=")[2] for entry in container.env if entry.startswith(_LIBRARY_PATH)]
    return Made(
        container_id=container.id,
        pid=container.pid,
        cgroups_path=container.linux.cgroups_path,
        library_path=paths[-1] if paths else "",
    )


def shown_gpus(container: Any) -> GpuEvidence:
    """Return the fields of the message that show which GPUs the container has. If an environment variable is set twice,
    the last value counts."""
    visible = [entry for entry in container.env if entry.startswith(_VISIBLE)]
    return GpuEvidence(
        nodes=tuple(device_numbers(container).values()),
        cdi_devices=cdi_devices(container),
        visible=visible[-1].removeprefix(_VISIBLE) if visible else None,
        is_privileged=is_privileged(container),
    )


def net_devices(container: Any) -> frozenset[str]:
    """Return the host's netdevs that the runtime would move into the container. Runtimes with NRI 0.11 or later report
    them."""
    return frozenset(container.linux.net_devices)


def create_response(edits: ContainerEdits, *, whole_rdma_max: bool) -> Any:
    """Return a CreateContainerResponse with these edits. No key may occur twice in it, because NRI fails the container
    with a conflict then.

    `whole_rdma_max`: write all lines of rdma.max; otherwise only the first, and StartContainer writes the others
    (docs/adr/0009). Fields are set one by one, because keyword arguments of add() take a fifth longer.
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
        adjust.linux.net_devices[f"-{name}"].name = ""  # NRI's notation for "do not move it"
    if edits.memlock is not None:
        adjust.rlimits.add(type="RLIMIT_MEMLOCK", hard=edits.memlock, soft=edits.memlock)
    if edits.rdma_max:
        lines = edits.rdma_max if whole_rdma_max else edits.rdma_max[:1]
        adjust.linux.resources.unified[RDMA_MAX] = "\n".join(lines)
    return response

"""Computes the edits by which a container gets the devices of its pod.

Pure and from memory, because CreateContainer waits for it. The caller has passed the barrier (the wait until the pod's
devices are attached), so that the numbers of the character devices are the kernel's present ones.

Law: the edits have each path and each variable only once. Variables that the container sets itself stay. A container is
edited only if a request of its pod is for this container.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nri_rdma.decide.policy import Admitted, refuse_two_values
from nri_rdma.decide.port_gids import CHOICES, GID_VARIABLES, Gids, joined
from nri_rdma.decide.share_requests import rises
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import CharDevice, CharKind, DeviceNumbers, LinkLayer, RdmaDevice
from nri_rdma.model.edits import DEVICES, NETDEVS, ContainerEdits
from nri_rdma.model.request import Mode, RdmaLimits, Use, env_name

NOTHING = ContainerEdits()
USUAL_INTERFACE = "eth0"
"""The default name of a pod's own interface, both in Kubernetes and in podman."""
HCA_LIST, HCA_MAPPING = "NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING"
"""NVSHMEM's two ways to choose devices: it ignores the mapping if the list is set, too."""
HINT_VARIABLES = ("NCCL_IB_HCA", "UCX_NET_DEVICES", HCA_LIST)
"""The variables that tell NCCL, UCX and NVSHMEM which devices to use."""
SOCKET_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""The variables that name interfaces for TCP. Their values are known only when the pod has its network."""
LATE_VARIABLES = (*SOCKET_VARIABLES, *GID_VARIABLES)
"""The variables whose values may be unknown when a container of podman or Docker is created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDevice:
    """A device after the attach: its character devices with their present numbers, and the names of its netdevs in the
    pod (none in mode shared, where they stay on the host)."""

    device: RdmaDevice
    netdev_names: tuple[str, ...]
    limits: RdmaLimits | None = None
    """The limits on this device; None: the limits of the request count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedRequest:
    """A request of a pod with its devices after the attach, from which the edits of containers are made."""

    admitted: Admitted
    devices: tuple[AttachedDevice, ...]
    pod_interface: str | None = USUAL_INTERFACE
    """The interface by which the pod reaches other pods, "" if it has none; None: the pod has no network yet."""

    @property
    def moved(self) -> tuple[str, ...]:
        """The names of the netdevs that moved into the pod for this request."""
        return tuple([name for attached in self.devices for name in attached.netdev_names])


def inject(
    attached: tuple[AttachedRequest, ...],
    rdma_cm: CharDevice | None,
    container: str,
    present_env: Collection[str],
    present_devices: Mapping[str, tuple[int, int]],
    default_memlock: int | None,
    gids: Sequence[Gids] = (),
) -> ContainerEdits:
    """Return the edits of one container; no edits if no request in `attached` is for this container.

    `present_env` are the names of the variables that the container has, `present_devices` its device nodes by path. The
    edits replace a device node of the container if it has other numbers than the pod's device at its path. `gids` are
    the GIDs of the pod's ports.
    """
    covering = [item for item in attached if item.admitted.request.scope.covers(container)]
    if not covering:
        return NOTHING
    env = _env(attached, covering)
    if HCA_MAPPING in present_env or HCA_MAPPING in dict(env):
        env = [pair for pair in env if pair[0] != HCA_LIST]
    if gids:
        env += _gid_variables(joined(gids), attached, covering, present_env)
    return ContainerEdits(
        char_devices=_char_devices(covering, rdma_cm, present_devices),
        env=tuple([pair for pair in env if pair[0] not in present_env]),
        memlock=_memlock(covering, default_memlock),
        rdma_max=_rdma_max(covering),
    )


def shown_as(path: str, numbers: DeviceNumbers, devices: Iterable[RdmaDevice]) -> tuple[RdmaDevice, CharDevice] | None:
    """Find the RDMA device behind a device node of a container, if the node has the path of another device. `path` and
    `numbers` are the node's path, and its major and minor number. Return the RDMA device and its character device; None
    if no RDMA device has the numbers, or if the path is the right one."""
    for device in devices:
        for char in device.char_devices:
            if (char.major, char.minor) == numbers and char.path != path:
                return device, char
    return None


def refuse_conflicts(
    edits: ContainerEdits, present: Mapping[str, DeviceNumbers], devices: Iterable[RdmaDevice], where: str
) -> tuple[tuple[CharDevice, DeviceNumbers], ...]:
    """Return the character devices in `edits` that replace a stale device node of the container, with the old numbers.
    `present` has the container's device nodes by path. A node is stale if no RDMA device has its numbers any more
    (because of an outdated CDI file, for example).

    Raise PlacementError if the numbers belong to another RDMA device: two programs gave the container different devices
    at one path, and neither may silently win. `where` names the container.
    """
    replaced = tuple((ours, present[ours.path]) for ours in edits.char_devices if ours.path in present)
    for ours, theirs in replaced:
        found = shown_as(ours.path, theirs, devices)
        if found is not None:
            device, char = found
            raise PlacementError(
                ErrorCode.PATH_CONFLICT,
                f"{ours.path} of the container is {theirs[0]}:{theirs[1]} already, {char.path} of {device.name};"
                f" this pod's is {ours.major}:{ours.minor}",
                where=where,
                hint="let one program only give it devices; the other is a device plugin, CDI or an earlier NRI plugin",
            )
    return replaced


def refuse_two_pools(attached: tuple[AttachedRequest, ...], container: str, present_env: Collection[str]) -> None:
    """Raise PlacementError if a container gets devices of two pools that give one variable different values. Variables
    in `present_env` do not matter, because the container sets them itself."""
    covering = (item.admitted for item in attached if item.admitted.request.scope.covers(container))
    refuse_two_values(covering, present_env)


def rdma_max(attached: tuple[AttachedRequest, ...], container: str) -> tuple[str, ...]:
    """Return the lines to write into the container's rdma.max (the limits of its rdma cgroup): one per limited device,
    in the order of the requests."""
    return _rdma_max([item for item in attached if item.admitted.request.scope.covers(container)])


def _char_devices(
    covering: list[AttachedRequest], rdma_cm: CharDevice | None, present: Mapping[str, tuple[int, int]]
) -> tuple[CharDevice, ...]:
    by_path: dict[str, CharDevice] = {}
    for item in covering:
        kinds = item.admitted.request.char_kinds
        for attached in item.devices:
            for char in attached.device.char_devices:
                if char.kind in kinds:
                    by_path[char.path] = char
        if rdma_cm is not None and CharKind.RDMA_CM in kinds:
            by_path[rdma_cm.path] = rdma_cm
    return tuple([char for path, char in by_path.items() if present.get(path) != (char.major, char.minor)])


def _env(attached: tuple[AttachedRequest, ...], covering: list[AttachedRequest]) -> list[tuple[str, str]]:
    """Return the variables of a container. The first ones tell NCCL, UCX, NVSHMEM and Gloo what to use; a variable of a
    pool replaces them. The variables of the pools follow, then the names of each request's devices. `covering` are
    those of the pod's requests (`attached`) that are for this container."""
    computing = [item for item in covering if item.admitted.request.use is not Use.STORAGE]
    env = _hints(computing)
    interfaces = _interfaces(attached, computing)
    if interfaces:
        env += [("NCCL_SOCKET_IFNAME", f"={interfaces}"), ("GLOO_SOCKET_IFNAME", interfaces)]
    with_env = [item.admitted for item in covering if item.admitted.env]
    if with_env:
        given = {name: value for it in reversed(with_env) for name, value in it.variables}
        env = [pair for pair in env if pair[0] not in given] + [*given.items()]
    env += _devices(attached, covering)
    return env


def _gid_variables(
    gids: Gids, attached: tuple[AttachedRequest, ...], covering: list[AttachedRequest], present_env: Collection[str]
) -> list[tuple[str, str]]:
    """Return the variables that choose a GID in NCCL and UCX. Variables of a library are left out if the container or
    its pools already choose a GID for it. `covering` are those of the pod's requests (`attached`) that are for this
    container."""
    told = gids.variables
    if len(covering) < len(attached):
        told = gids.variables_of(gids.computing & {it.device.name for item in covering for it in item.devices})
    pools = {name for item in covering if item.admitted.env for name, _ in item.admitted.variables}
    said = [it for it in CHOICES if not (it.isdisjoint(present_env) and it.isdisjoint(pools))]
    return [pair for pair in told if not any(pair[0] in it for it in said)]


def _hints(computing: list[AttachedRequest]) -> list[tuple[str, str]]:
    """Return the variables that tell NCCL, UCX and NVSHMEM which devices to use for verbs. `computing` are the requests
    whose devices are not only for storage.

    NCCL's ``=`` demands an exact match; otherwise ``mlx5_1`` would also select ``mlx5_10``. UCX's list counts for all
    networks, so it needs ``lo`` for TCP within the container. Only active ports are named; if none is active, all ports
    are named, because one may become active later.
    """
    usable = {
        it.device.id: (it.device, live_ports(it.device, item.admitted.mode))
        for item in computing
        if CharKind.UVERBS in item.admitted.request.char_kinds
        for it in item.devices
    }.values()
    if not usable:
        return []
    named = [(device, ports) for device, ports in usable if ports] or [(it, _port_numbers(it)) for it, _ in usable]
    devices, every_port = [], []
    for device, ports in named:
        words = [f"{device.name}:{number}" for number in ports]
        devices += words if len(ports) < len(device.ports) else [device.name]
        every_port += words
    values = "=" + ",".join(devices), ",".join([*every_port, "lo"]), ",".join(every_port)
    return [*zip(HINT_VARIABLES, values, strict=True)]


def usable_ports(device: RdmaDevice, mode: Mode) -> list[int]:
    """Return the numbers of a device's ports that a container's libraries are told to use: the ports that can carry
    data in this mode, or all ports if none can."""
    return live_ports(device, mode) or _port_numbers(device)


def live_ports(device: RdmaDevice, mode: Mode) -> list[int]:
    """Return the numbers of the ports that can carry data now, or that will do so when the device's netdev is up in the
    pod."""
    if not [port for port in device.ports if not port.is_active or port.is_limited]:
        return _port_numbers(device)
    is_raised = rises(device, mode)
    live = [it for it in device.ports if it.is_active or (is_raised and it.link_layer is LinkLayer.ETHERNET)]
    return [it.number for it in live if not it.is_limited]


def _port_numbers(device: RdmaDevice) -> list[int]:
    return [port.number for port in device.ports] or [1]


def _interfaces(attached: tuple[AttachedRequest, ...], computing: list[AttachedRequest]) -> str:
    """Return the interfaces for TCP connections in a pod with moved netdevs, joined by commas. They are the pod's own
    interface, by which it reaches other pods, or else the moved netdevs. "" if no netdev moved, or if the pod's network
    is not known yet."""
    moving = [item.pod_interface for item in attached if item.moved]
    if not moving or moving[0] is None:
        return ""
    return max(filter(None, moving), default="") or ",".join({name: None for item in computing for name in item.moved})


def _devices(attached: tuple[AttachedRequest, ...], covering: list[AttachedRequest]) -> list[tuple[str, str]]:
    """Return the variables that name the devices and netdevs of each request. `covering` are those of the pod's
    requests (`attached`) that are for this container.

    A request without a name is numbered among the container's requests. For one release its devices are also in the
    variable with the number that the request has in the pod, unless another request uses that variable.
    """
    told: dict[str, dict[str, None]] = {}  # CDI devices may make several requests of one name: their values are joined
    in_pod: dict[int, int] = {}
    if len(covering) < len(attached):  # else the numbers of the pod are those of the container
        in_pod = {id(item): number for number, item in enumerate(filter(_is_of_annotation, attached))}
    old: list[tuple[str, AttachedRequest]] = []
    number = 0
    for item in covering:
        name = item.admitted.request.name
        if id(item) in in_pod:
            if name == str(in_pod[id(item)]):
                old.append((name, item))
                name = str(number)
            number += 1
        _tell(told, env_name(name), item)
    for suffix, item in old:
        if f"{DEVICES}{suffix}" not in told:
            _tell(told, suffix, item)
    return [(variable, ",".join(names)) for variable, names in told.items()]


def _is_of_annotation(item: AttachedRequest) -> bool:
    return not item.admitted.request.cdi_device and not item.admitted.request.shares


def _tell(told: dict[str, dict[str, None]], suffix: str, item: AttachedRequest) -> None:
    for attached in item.devices:
        told.setdefault(f"{DEVICES}{suffix}", {})[attached.device.name] = None
        for name in attached.netdev_names:
            told.setdefault(f"{NETDEVS}{suffix}", {})[name] = None


def _memlock(covering: list[AttachedRequest], default: int | None) -> int | None:
    asked = [item.admitted.request.memlock for item in covering if item.admitted.request.memlock is not None]
    return max(asked) if asked else default


def _rdma_max(covering: list[AttachedRequest]) -> tuple[str, ...]:
    limited: dict[str, RdmaLimits] = {}
    for item in covering:
        for attached in item.devices:
            limits = item.admitted.request.limits if attached.limits is None else attached.limits
            if limits is not None:
                limited[attached.device.name] = limits.within(limited.get(attached.device.name))
    return tuple(
        [
            f"{name} hca_handle={_limit(limits.hca_handles)} hca_object={_limit(limits.hca_objects)}"
            for name, limits in limited.items()
        ]
    )


def _limit(value: int | None) -> str:
    return "max" if value is None else str(value)

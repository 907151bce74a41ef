"""Edits a container so that it gets the devices of its pod.

Pure and from memory: CreateContainer waits for this. Whoever calls it has passed the barrier, so that the numbers of
the character devices are those the kernel has now.

Law: no path and no variable twice; what the container sets itself stays; a container that no request covers gets
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nri_rdma.decide.policy import Admitted, refuse_two_values
from nri_rdma.decide.port_gids import CHOICES, GID_VARIABLES, Gids, joined
from nri_rdma.decide.shares import rises
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import CharDevice, CharKind, DeviceNumbers, LinkLayer, RdmaDevice
from nri_rdma.model.edits import DEVICES, NETDEVS, ContainerEdits
from nri_rdma.model.request import Mode, RdmaLimits, Use, env_name

NOTHING = ContainerEdits()
USUAL_INTERFACE = "eth0"
"""The pod's own interface where runtimes and podman name it as they do by default."""
HCA_LIST, HCA_MAPPING = "NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING"
"""NVSHMEM ignores a mapping beside a list."""
HINT_VARIABLES = ("NCCL_IB_HCA", "UCX_NET_DEVICES", HCA_LIST)
"""The variables that name devices to libraries."""
SOCKET_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""The variables that are only known once the pod has its network."""
LATE_VARIABLES = (*SOCKET_VARIABLES, *GID_VARIABLES)
"""The variables that are not known everywhere when a container of podman or Docker is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDevice:
    """A device as it is at the end of the attach: its character devices with their present numbers, and the names of
    its netdevs in the pod (mode exclusive) or on the host (mode shared)."""

    device: RdmaDevice
    netdev_names: tuple[str, ...]
    limits: RdmaLimits | None = None
    """The limits on this device, where they are not those of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedRequest:
    """A request with its devices, ready to be injected."""

    admitted: Admitted
    devices: tuple[AttachedDevice, ...]
    pod_interface: str | None = USUAL_INTERFACE
    """The interface over which the pod reaches other pods, "" where it has none; None: the pod has no network yet."""

    @property
    def moved(self) -> tuple[str, ...]:
        """Return the netdevs that are in the pod for this request."""
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
    """Return the edits of one container.

    `present_env` are the names of the variables and `present_devices` the paths and numbers of the devices that it has
    already. A device in the edits whose path is present has other numbers, and replaces it. `gids` are those of
    `attached`, by attach.
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
    """Return the character device of the node that a container shows at another device's path. Return None if no
    device has these numbers, or if they are old numbers of this same path."""
    for device in devices:
        for char in device.char_devices:
            if (char.major, char.minor) == numbers and char.path != path:
                return device, char
    return None


def refuse_conflicts(
    edits: ContainerEdits, present: Mapping[str, DeviceNumbers], devices: Iterable[RdmaDevice], where: str
) -> tuple[tuple[CharDevice, DeviceNumbers], ...]:
    """Return our nodes that replace others of the container, with the others' numbers, which belong to no device (a CDI
    file may be stale).

    Raise PlacementError where one of ours would hide the node of another RDMA device at the same path: two parties want
    the container to have different devices of one name, and neither may win in silence.
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
                hint="let only one give it devices; the other is a device plugin, CDI or an NRI plugin before this one",
            )
    return replaced


def refuse_two_pools(attached: tuple[AttachedRequest, ...], container: str, present_env: Collection[str]) -> None:
    """Raise PlacementError where the pools of a container's devices give a variable two values, and the container has
    none of its own."""
    covering = (item.admitted for item in attached if item.admitted.request.scope.covers(container))
    refuse_two_values(covering, present_env)


def rdma_max(attached: tuple[AttachedRequest, ...], container: str) -> tuple[str, ...]:
    """Return the lines of the container's rdma.max alone: one per limited device, in the order of the requests."""
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
    """Return what libraries are told, then the variables of the pools, then the devices of each request."""
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
    """Return the variables that choose a GID, but none of a library for which the container or its pools choose
    themselves."""
    told = gids.variables
    if len(covering) < len(attached):
        told = gids.variables_of(gids.computing & {it.device.name for item in covering for it in item.devices})
    pools = {name for item in covering if item.admitted.env for name, _ in item.admitted.variables}
    said = [it for it in CHOICES if not (it.isdisjoint(present_env) and it.isdisjoint(pools))]
    return [pair for pair in told if not any(pair[0] in it for it in said)]


def _hints(computing: list[AttachedRequest]) -> list[tuple[str, str]]:
    """Return the devices that can be used through verbs, for NCCL (``=`` means exactly these, else ``mlx5_1`` would
    also select ``mlx5_10``) and UCX. UCX takes its list for all networks, so that it needs ``lo`` for TCP within the
    container. Of ports only the active ones are named; where none is, all are: one may become active later."""
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
    """Return the numbers of the ports that libraries are told of where this is the only device."""
    return live_ports(device, mode) or _port_numbers(device)


def live_ports(device: RdmaDevice, mode: Mode) -> list[int]:
    """Return the numbers of the ports that can carry data, or will in the pod, where the netdev is raised."""
    if not [port for port in device.ports if not port.is_active or port.is_limited]:
        return _port_numbers(device)
    is_raised = rises(device, mode)
    live = [it for it in device.ports if it.is_active or (is_raised and it.link_layer is LinkLayer.ETHERNET)]
    return [it.number for it in live if not it.is_limited]


def _port_numbers(device: RdmaDevice) -> list[int]:
    return [port.number for port in device.ports] or [1]


def _interfaces(attached: tuple[AttachedRequest, ...], computing: list[AttachedRequest]) -> str:
    """Return the interfaces for connections by TCP, where netdevs have moved into the pod: its own one, over which the
    other pods are reached, else those netdevs; "" where there is nothing to choose, or where it is not known yet."""
    moving = [item.pod_interface for item in attached if item.moved]
    if not moving or moving[0] is None:
        return ""
    return max(filter(None, moving), default="") or ",".join({name: None for item in computing for name in item.moved})


def _devices(attached: tuple[AttachedRequest, ...], covering: list[AttachedRequest]) -> list[tuple[str, str]]:
    """Return the devices and netdevs of each request by its name. A request without one is called by its number in the
    container, and besides, for one release, by its number in the pod, as far as no other request has that."""
    told: dict[str, dict[str, None]] = {}  # requests of one name come with CDI devices: their values are joined
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

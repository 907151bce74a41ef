"""Edits a container so that it gets the devices of its pod.

Pure and from memory: CreateContainer waits for this. Whoever calls it has passed the barrier, so that the numbers of
the character devices are those the kernel has now.

Law: no path and no variable twice; what the container sets itself stays; a container that no request covers gets
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nri_rdma.decide.policy import Admitted
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import CharDevice, CharKind, DeviceNumbers, RdmaDevice
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.request import RdmaLimits, env_name

NOTHING = ContainerEdits()
ENV_PREFIXES = ("NCCL_IB_HCA", "UCX_NET_DEVICES", "RDMA_DEVICES_", "RDMA_NETDEVS_")
"""The beginnings of all variables that are set here."""


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


def inject(
    attached: tuple[AttachedRequest, ...],
    rdma_cm: CharDevice | None,
    container: str,
    present_env: Collection[str],
    present_devices: Mapping[str, tuple[int, int]],
    default_memlock: int | None,
) -> ContainerEdits:
    """Return the edits of one container.

    `present_env` are the names of the variables and `present_devices` the paths and numbers of the devices that it has
    already. A device in the edits whose path is present has other numbers, and replaces it.
    """
    covering = [item for item in attached if item.admitted.request.scope.covers(container)]
    if not covering:
        return NOTHING
    return ContainerEdits(
        char_devices=_char_devices(covering, rdma_cm, present_devices),
        env=tuple([pair for pair in _env(covering) if pair[0] not in present_env]),
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


def _env(covering: list[AttachedRequest]) -> Iterable[tuple[str, str]]:
    """Yield hints for NCCL (``=`` means exactly these, else ``mlx5_1`` would also select ``mlx5_10``) and UCX
    (device:port), which name the devices that can be used through verbs; then the devices of each request."""
    usable = {
        attached.device.id: attached.device
        for item in covering
        if CharKind.UVERBS in item.admitted.request.char_kinds
        for attached in item.devices
    }.values()
    if usable:
        yield "NCCL_IB_HCA", "=" + ",".join([device.name for device in usable])
        yield (
            "UCX_NET_DEVICES",
            ",".join([f"{device.name}:{port.number}" for device in usable for port in device.ports]),
        )
    told: dict[str, dict[str, None]] = {}  # requests of one name come with CDI devices: their values are joined
    for item in covering:
        suffix = env_name(item.admitted.request.name)
        for attached in item.devices:
            told.setdefault(f"RDMA_DEVICES_{suffix}", {})[attached.device.name] = None
            for name in attached.netdev_names:
                told.setdefault(f"RDMA_NETDEVS_{suffix}", {})[name] = None
    for variable, names in told.items():
        yield variable, ",".join(names)


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

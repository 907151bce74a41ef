"""Makes the CDI spec of a node's RDMA devices, whose names are like ``rdma.noderesource.dev/nic=mlx5_0``, or that of
one pool's devices, like ``rdma.noderesource.dev/nic-POOL=mlx5_0``.

The spec leaves out the major and minor numbers of device nodes, their mode and their owner. The numbers change when a
device returns from a network namespace or is plugged in again, and an outdated number would give a container another
device. Without them the runtime reads the host's device node, and refuses the container if the node is missing.

The runtime remembers what it read until a file in the spec folder changes (seen with containerd 2.1, and in the CDI
library up to 1.1.1). So the spec must be written again when a number has changed, even if its text stays the same. The
type of the node is written, so that a path that is not a character device is refused.

The spec also leaves out environment variables: two devices in one container would both set NCCL_IB_HCA, and only the
last value would count. It leaves out the umad and issm nodes, through which programs send fabric management datagrams.
Our annotations are added only if the user asks for them: they need CDI 0.6.0 (otherwise 0.3.0 suffices), and have an
effect only if nri-rdma runs on the node.

The node's rdma_cm belongs to the whole spec, so that a container with several devices gets it once.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace

from nri_rdma.cdi.names import DEVICE, VENDOR_OR_CLASS
from nri_rdma.cdi.spec import Device, DeviceNode, Edits, Kind, NodeType, Spec
from nri_rdma.cdi.version import VERSIONS, minimum_version
from nri_rdma.decide.policy import Policy, offer
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import CharDevice, CharKind, Node, RdmaDevice
from nri_rdma.model.request import Mode
from nri_rdma.text.refusals import bounded, listed

NIC = Kind(vendor="rdma.noderesource.dev", device_class="nic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A CDI spec, and one sentence for each device that was left out."""

    spec: Spec
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecAsks:
    """The request that each CDI device of the spec makes to nri-rdma in an annotation. A field that is None adds
    nothing to the request.

    `memlock` is the RLIMIT_MEMLOCK, a number of bytes or ``unlimited``. `hca_handles` and `hca_objects` are the limits
    of the rdma cgroup.
    """

    mode: Mode | None = None
    memlock: int | str | None = None
    hca_handles: int | None = None
    hca_objects: int | None = None

    @property
    def text(self) -> str:
        """The request as JSON; "" if all fields are None."""
        limits = {"hcaHandles": self.hca_handles, "hcaObjects": self.hca_objects}
        given = {key: value for key, value in limits.items() if value is not None}
        keys = {"mode": self.mode, "memlock": self.memlock, "limits": given or None}
        asked = {key: value for key, value in keys.items() if value is not None}
        return json.dumps(asked) if asked else ""


def spec_of(
    node: Node, only: Collection[str] = (), *, kind: Kind = NIC, annotations: tuple[tuple[str, str], ...] = ()
) -> Generated:
    """Return a spec with one CDI device for each device that the host does not use. With `only`, take the devices with
    these names instead, even if the host uses them. Each CDI device gets the annotations.

    Raises PlacementError if the node has no device with a name in `only`, or if no device is left.
    """
    missing = sorted(set(only) - {device.name for device in node.devices})
    if missing:
        hint = "`nri-rdma inventory` shows the devices there are"
        raise PlacementError(ErrorCode.DEVICE_UNKNOWN, f"the node has no RDMA device {listed(missing)}", hint=hint)
    chosen = [device for device in node.devices if not only or device.name in only]
    reasons = {device.name: _obstacle(device, named=bool(only)) for device in chosen}
    devices = tuple(
        replace(_cdi_device(device), annotations=annotations) for device in chosen if not reasons[device.name]
    )
    left_out = tuple(f"{bounded(name)} is left out: {why}." for name, why in reasons.items() if why)
    if not devices:
        hint = "load ib_uverbs and the driver of the device; `nri-rdma inventory` shows what there is"
        raise PlacementError(
            ErrorCode.DEVICE_UNKNOWN, "no RDMA device can be given by CDI", hint=hint, detail=" ".join(left_out)
        )
    common = Edits(device_nodes=() if node.rdma_cm is None else (_device_node(node.rdma_cm),))
    spec = Spec(version=VERSIONS[0], kind=kind, devices=devices, edits=common)
    return Generated(spec=replace(spec, version=minimum_version(spec)), left_out=left_out)


def of_pool(policy: Policy, node: Node, name: str, mode: Mode | None, only: Collection[str] = ()) -> tuple[Node, Kind]:
    """Return the node with only the devices of the pool `name`, and the CDI kind for them.

    Raises PlacementError if there is no such pool, if it does not allow `mode`, if it has no device on this node, if a
    device in `only` is not in it, or if CDI does not allow its name.
    """
    pool = policy.pools.get(name)
    if pool is None:
        hint = f"the pools are {', '.join(sorted(policy.pools))}"
        raise PlacementError(ErrorCode.POOL_UNKNOWN, f"this node has no pool {bounded(name)}", hint=hint)
    if mode is not None and mode not in pool.modes:
        what = f"pool {name} serves {' and '.join(pool.modes)}, not {mode}"
        raise PlacementError(ErrorCode.POOL_MODE, what, where=pool.where, hint=f"write --mode {pool.modes[0]}")
    kind = Kind(vendor=NIC.vendor, device_class=f"{NIC.device_class}-{name}")
    if not VENDOR_OR_CLASS.fullmatch(kind.device_class):
        hint = "give the pool a name that ends with a letter or a digit"
        raise PlacementError(ErrorCode.POOL_UNKNOWN, f"CDI does not allow the kind {kind}", where=pool.where, hint=hint)
    devices = offer(policy, node).by_pool[name]
    if not devices:
        hint = "`nri-rdma config show` tells the devices of each pool"
        raise PlacementError(ErrorCode.NOT_IN_POOL, f"pool {name} has no device on this node", hint=hint)
    others = sorted({it.name for it in node.devices if it.name in only} - {it.name for it in devices})
    if others:
        hint = f"it has {listed(sorted(it.name for it in devices))}; `nri-rdma config show` tells those of each pool"
        raise PlacementError(ErrorCode.NOT_IN_POOL, f"pool {name} does not have {listed(others)}", hint=hint)
    return replace(node, devices=devices), kind


def _obstacle(device: RdmaDevice, *, named: bool) -> str:
    if not DEVICE.fullmatch(device.name):
        return "CDI does not allow its name"
    if not _uverbs(device):
        return "it has no uverbs node (is ib_uverbs loaded?)"
    if device.in_use and not named:  # a device node takes nothing from the host, so a user may name the device
        return f"in use by the host: {'; '.join(device.in_use)}"
    return ""


def _uverbs(device: RdmaDevice) -> list[CharDevice]:
    return [char for char in device.char_devices if char.kind is CharKind.UVERBS]


def _cdi_device(device: RdmaDevice) -> Device:
    return Device(name=device.name, edits=Edits(device_nodes=tuple(map(_device_node, _uverbs(device)))))


def _device_node(char: CharDevice) -> DeviceNode:
    """Return a device node that the container may read and write, but not create."""
    return DeviceNode(path=char.path, type=NodeType.CHARACTER, permissions="rw")

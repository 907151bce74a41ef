"""The spec of a node's own RDMA devices: ``rdma.noderesource.dev/nic=mlx5_0`` and the like, and of one pool's:
``rdma.noderesource.dev/nic-POOL=mlx5_0``.

What is left out, and why:
- The numbers of the nodes. They change when a device comes back from a network namespace or is plugged anew, and a
  spec with yesterday's number gives a container somebody else's device. Without them the runtime looks at the host's
  node; there is none, it refuses. It looks once, and remembers until a file of the directory changes (seen with
  containerd 2.1, and in the library up to 1.1.1): write the spec anew when a number has changed, even if its text has
  not. The type stays: a node that is no character device is refused too.
- Mode and owner, for the same reason: the runtime takes the host's.
- The environment. Of two devices in one container both would set NCCL_IB_HCA, and the last one wins.
- umad and issm, which send fabric management datagrams.
- Annotations of ours, unless they are asked for: they need CDI 0.6.0, and this is 0.3.0. What they say holds where
  nri-rdma runs beside the runtime; a runtime alone gives the nodes.

The one rdma_cm of the node stands at the spec: it comes once, however many devices a container has.
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
    """A spec, and a sentence for each device that is not in it."""

    spec: Spec
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecAsks:
    """The request that the devices of a spec make to nri-rdma, by the keys of a request; None asks for nothing.

    `memlock` is a number of bytes or ``unlimited``, the others as their keys.
    """

    mode: Mode | None = None
    memlock: int | str | None = None
    hca_handles: int | None = None
    hca_objects: int | None = None

    @property
    def text(self) -> str:
        """As JSON; "" for nothing."""
        limits = {"hcaHandles": self.hca_handles, "hcaObjects": self.hca_objects}
        given = {key: value for key, value in limits.items() if value is not None}
        keys = {"mode": self.mode, "memlock": self.memlock, "limits": given or None}
        asked = {key: value for key, value in keys.items() if value is not None}
        return json.dumps(asked) if asked else ""


def spec_of(
    node: Node, only: Collection[str] = (), *, kind: Kind = NIC, annotations: tuple[tuple[str, str], ...] = ()
) -> Generated:
    """The spec of the node's devices that the host does not use; or of those in `only`, by name, whoever uses them.
    Each device has the annotations.

    Raises PlacementError when one in `only` is not on the node, or no device is left.
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
    """The node with nothing but the devices of a pool, and the kind that these are. Raises PlacementError where there
    is no such pool, it does not serve the mode, it has no device here or not those in `only`, or CDI has no such
    names."""
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
        raise PlacementError(ErrorCode.POOL_UNKNOWN, f"CDI has no kind {kind}", where=pool.where, hint=hint)
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
        return "CDI has no such names"
    if not _uverbs(device):
        return "it has no uverbs node, is ib_uverbs loaded"
    if device.in_use and not named:  # a node alone takes nothing away from the host: who names it may have it
        return f"in use by the host: {'; '.join(device.in_use)}"
    return ""


def _uverbs(device: RdmaDevice) -> list[CharDevice]:
    return [char for char in device.char_devices if char.kind is CharKind.UVERBS]


def _cdi_device(device: RdmaDevice) -> Device:
    return Device(name=device.name, edits=Edits(device_nodes=tuple(map(_device_node, _uverbs(device)))))


def _device_node(char: CharDevice) -> DeviceNode:
    """Opened for reading and writing; a container has no need to make the node anew."""
    return DeviceNode(path=char.path, type=NodeType.CHARACTER, permissions="rw")

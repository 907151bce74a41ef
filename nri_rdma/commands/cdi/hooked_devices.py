"""Adds hooks to a node's CDI devices, for podman, Docker and other engines that read CDI specs. With the hooks a
container also gets netdevs and limits, not only device nodes.

Each device sets variables with its own names (``RDMA_DEVICES_MLX5_5``). NCCL_IB_HCA and UCX_NET_DEVICES are not set:
two devices in one container would both set them, only the last value would count, and it would replace a value of the
container's author. Libraries find the right devices without them, because a container has only the nodes of its own
devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from nri_rdma.cdi.meaning import label_of
from nri_rdma.cdi.spec import Device, Edits, Hook, HookName, Spec
from nri_rdma.cdi.version import minimum_version
from nri_rdma.commands.cdi.generate import Generated
from nri_rdma.decide.policy import Policy, offer
from nri_rdma.doors.oci.questions import MAX_DEVICES
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.host.engine_setups import OCI_HOOK
from nri_rdma.model.device import Node, RdmaDevice, RdmaNetns
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode, env_name

PROGRAM = OCI_HOOK.name
MODULE = "nri_rdma_oci_hook.py"
"""The Python module beside the hook program, which contains all of its code."""
HOOK = OCI_HOOK
HOOK_TIMEOUT_S = 15
"""After this time the OCI runtime kills the hook and refuses the container. The hook's own time limits are shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookStyle:
    """The options that all hooks of a spec have in common.

    If a field is None: `mode` is the first mode of the device's pool, `pool` is the pool that has the device when a
    container asks, `socket` is the hook's default socket, `memlock` is not requested, and the limits `hca_handles` and
    `hca_objects` are those of the pool. `memlock` is the RLIMIT_MEMLOCK, a number of bytes or ``unlimited``.
    """

    path: Path = HOOK
    socket: Path | None = None
    pool: str | None = None
    mode: Mode | None = None
    memlock: int | str | None = None
    hca_handles: int | None = None
    hca_objects: int | None = None


def hooked(generated: Generated, node: Node, policy: Policy, style: HookStyle) -> Generated:
    """Return the spec with hooks and variables added to each CDI device. A device is left out if no pool offers it in
    the mode of `style`.

    Raises PlacementError if no device is left.
    """
    by_pool = offer(policy, node)
    known = {device.name: device for device in node.devices}
    devices: list[Device] = []
    left_out = list(generated.left_out)
    for device in generated.spec.devices:
        pool = policy.pools.get(by_pool.home_of(known[device.name]))
        obstacle = _obstacle(pool, style.mode)
        if pool is None or obstacle:
            left_out.append(f"{device.name} is left out: {obstacle}.")
        else:
            mode = style.mode or _first_mode(pool, node)
            devices.append(_hooked(device, known[device.name], mode, style))
    if not devices:
        hint = "`nri-rdma config show` tells the pools and their modes; without any, write allow_default_pool = true"
        what = "no RDMA device can be given by hooks"
        raise PlacementError(ErrorCode.POOL_MODE, what, hint=hint, detail=" ".join(left_out))
    every: tuple[Device, ...] = ()
    if len(devices) <= MAX_DEVICES:
        every = tuple(_all_of(devices))
    else:
        left_out.append(
            f"There is no device {ALL}: a container can ask for {MAX_DEVICES} devices, and here are {len(devices)}."
        )
    spec = replace(generated.spec, devices=(*devices, *every))
    return Generated(spec=_versioned(spec), left_out=tuple(left_out))


ALL = "all"
"""The name of the CDI device that stands for all devices of the spec. Other vendors use this name, too."""


def _all_of(devices: Sequence[Device]) -> Iterator[Device]:
    """Yield a CDI device with the edits of all devices. A container that asks for it gets all of them, or does not
    start. Yields nothing if a device already has the name `all`."""
    if any(it.name == ALL for it in devices):
        return
    edits = [it.edits for it in devices]
    yield Device(
        name=ALL,
        edits=Edits(
            env=tuple(dict.fromkeys(chain.from_iterable(it.env for it in edits))),
            device_nodes=tuple(dict.fromkeys(chain.from_iterable(it.device_nodes for it in edits))),
            hooks=tuple(dict.fromkeys(chain.from_iterable(it.hooks for it in edits))),
        ),
    )


def _versioned(spec: Spec) -> Spec:
    return replace(spec, version=minimum_version(spec))


def _obstacle(pool: Pool | None, mode: Mode | None) -> str:
    """Return why a hook cannot give containers a device of this pool; "" if it can."""
    if pool is None:
        return "no pool has it, or several pools do"
    if pool.door is not PoolDoor.ANNOTATIONS:
        return f"pool {pool.name} is asked through Kubernetes ({pool.door})"
    if mode is not None and mode not in pool.modes:
        return f"pool {pool.name} serves {' and '.join(pool.modes)}, not {mode}"
    return ""


def _first_mode(pool: Pool, node: Node) -> Mode:
    """Return the first of the pool's modes that works with the kernel's RDMA namespace mode."""
    hides = node.rdma_netns is RdmaNetns.EXCLUSIVE
    return next((mode for mode in pool.modes if not (hides and mode is Mode.SHARED)), pool.modes[0])


def _hooked(device: Device, rdma: RdmaDevice, mode: Mode, style: HookStyle) -> Device:
    netdev = rdma.netdevs[0].name if mode is Mode.EXCLUSIVE and len(rdma.netdevs) == 1 else ""
    edits = device.edits
    return replace(
        device,
        edits=Edits(
            env=(*edits.env, *_env(rdma, netdev)),
            device_nodes=edits.device_nodes,
            hooks=(*edits.hooks, *_hooks(rdma, mode, netdev, style)),
        ),
    )


def _env(rdma: RdmaDevice, netdev: str) -> Iterator[str]:
    suffix = env_name(label_of(rdma.name))
    yield f"RDMA_DEVICES_{suffix}={rdma.name}"
    if netdev:
        yield f"RDMA_NETDEVS_{suffix}={netdev}"


def _hooks(rdma: RdmaDevice, mode: Mode, netdev: str, style: HookStyle) -> Iterator[Hook]:
    told = {
        "--device": rdma.name,
        "--pool": style.pool,
        "--mode": mode.value,
        "--netdev": netdev,
        "--memlock": style.memlock,
        "--hca-handles": style.hca_handles,
        "--hca-objects": style.hca_objects,
    }
    socket = ("--socket", str(style.socket)) if style.socket is not None else ()
    asked = tuple(word for flag, value in told.items() if value for word in (flag, str(value)))
    for name, words in ((HookName.CREATE_RUNTIME, ("attach", *asked)), (HookName.POSTSTOP, ("return",))):
        yield Hook(hook_name=name, path=str(style.path), args=(PROGRAM, *words, *socket), timeout=HOOK_TIMEOUT_S)

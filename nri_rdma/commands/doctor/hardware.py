"""Checks of the RDMA devices, of their device nodes, and of the pools that contain them."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.decide.policy import configured_policy, offer, policy_of
from nri_rdma.decide.share_limits import share_limits as limits_of_share
from nri_rdma.doors.control.node_document import node_from
from nri_rdma.errors import InventoryError, NotReadyError
from nri_rdma.host.verbs_process import VerbsProcess
from nri_rdma.model.device import CharDevice, CharKind, Node, RdmaDevice
from nri_rdma.model.request import Mode


def devices(machine: Machine) -> Finding:
    """Report the RDMA devices, and which of them the host itself uses."""
    if isinstance(machine.node, InventoryError):
        return problem("devices", f"{machine.node.what} ({machine.node.where})", machine.node.hint)
    node, notes = machine.node
    if not node.devices:
        return problem(
            "devices",
            f"this machine has no RDMA device ({machine.settings.sysfs_root}/class/infiniband is absent or empty)",
            "load the driver of the NIC; to look at another machine's node: nri-rdma inventory --snapshot FILE",
        )
    sentences = (f"{_counted(len(node.devices), 'RDMA device')}{_use_words(node)}{_given_words(machine)}.", *notes)
    found = " ".join(sentences).removesuffix(".")
    if all(device.in_use for device in node.devices):
        return warning("devices", found, "free one on the host: see IN USE in `nri-rdma inventory`")
    return ok("devices", found)


def _given_words(machine: Machine) -> str:
    """Return words for the number of devices that pods or containers hold; "" if none is held or no daemon answers."""
    known = () if isinstance(machine.daemon, NotReadyError) else machine.daemon["devices"]
    given = sum(bool(device["holders"]) for device in known)
    return f"; pods or containers have {given}" if given else ""


def device_nodes(machine: Machine) -> Finding:
    """Check the character devices of RDMA: each device has a uverbs node, this machine has the node rdma_cm, and the
    files in /dev have the kernel's numbers."""
    if isinstance(machine.node, InventoryError) or not machine.node[0].devices:
        return not_applicable("device nodes", "there is no RDMA device")
    node, _ = machine.node
    bare = [
        device.name for device in node.devices if not any(char.kind is CharKind.UVERBS for char in device.char_devices)
    ]
    if bare:
        return problem(
            "device nodes",
            f"no uverbs node of {', '.join(bare)}: pods that ask for it are refused",
            "modprobe ib_uverbs",
        )
    if node.rdma_cm is None:
        return problem(
            "device nodes",
            "no rdma_cm node: requests are refused, except those with devices: [uverbs]",
            "modprobe rdma_ucm",
        )
    chars = [node.rdma_cm, *(char for device in node.devices for char in device.char_devices)]
    wrong = list(_wrong_nodes(machine, chars))
    if wrong:
        return warning(
            "device nodes",
            f"{'; '.join(wrong)}. Containers get the kernel's numbers all the same",
            "`udevadm trigger --subsystem-match=infiniband_verbs`; in a container mount the host's /dev/infiniband",
        )
    return ok("device nodes", f"{_counted(len(chars), 'node')} in {machine.settings.dev_root}/infiniband")


def pools(machine: Machine) -> Finding:
    """Check that every pool has at least one device that a pod can get, and that no device is selected by several
    pools."""
    if isinstance(machine.node, InventoryError) or not machine.node[0].devices:
        return not_applicable("pools", "there is no RDMA device")
    node, settings = machine.node[0], machine.settings
    policy = configured_policy(settings)
    offered = offer(policy, node)
    names = {device.id: device.name for device in node.devices}
    if offered.contested:
        words = [f"{names[key]} by {' and '.join(both)}" for key, both in sorted(offered.contested.items())]
        return problem(
            "pools",
            f"selected by several pools, so that none has them: {', '.join(words)}",
            "give the pools select or exclude that take different devices",
        )
    words = [
        f"{pool.name} ({', '.join(pool.modes)}): {', '.join(it.name for it in offered.by_pool[pool.name]) or 'none'}"
        for pool in policy.pools.values()
    ]
    empty = [
        pool.name
        for pool in policy.pools.values()
        if not any(_can_be_given(device, pool.modes) for device in offered.by_pool[pool.name])
    ]
    if empty:
        return warning(
            "pools",
            f"{'; '.join(words)}. No device is available in {', '.join(empty)}",
            "compare select and exclude with `nri-rdma inventory`; `nri-rdma config show` says what each pool has",
        )
    return ok("pools", "; ".join(words))


def share_limits(machine: Machine) -> Finding:
    """Check that a share, a unit of a pool's extended resource, has limits: from the configuration, or computed from
    the device's capacity."""
    pools = [pool for pool in machine.settings.pools if pool.shares]
    if not pools or isinstance(machine.node, InventoryError):
        return not_applicable("share limits", "no pool has shares" if not pools else "there is no RDMA device")
    policy = policy_of(machine.settings.pools, (), allow_default_pool=False)
    offered = offer(policy, machine.node[0])
    node = _with_capacities(machine, [device for pool in pools for device in offered.by_pool[pool.name]])
    told: dict[str, list[str]] = {}
    bare: dict[str, list[str]] = {}
    for pool in pools:
        for device in offered.by_pool[pool.name]:
            share = limits_of_share(node, offered, pool, device)
            into = bare if None in {share.limits.hca_handles, share.limits.hca_objects} else told
            into.setdefault(f"a share of pool {pool.name} has {share.words}", []).append(device.name)
    found = "; ".join(f"{words}, on {', '.join(names)}" for words, names in {**bare, **told}.items())
    if bare:
        return warning(
            "share limits",
            f"{found}. A container may take all that a device has",
            "install the distribution's pyverbs for `verbs_python`, let the daemon open /dev/infiniband/uverbs*, or"
            " write limits for the pool (docs/configuration.md, Shares)",
        )
    return ok("share limits", found or "the pools with shares have no device")


def _with_capacities(machine: Machine, devices: Sequence[RdmaDevice]) -> Node:
    """Return the node with the capacities of its devices. The running daemon reports them; if no daemon answers, this
    process asks the devices now."""
    assert not isinstance(machine.node, InventoryError)
    node, daemon = machine.node[0], machine.daemon
    if not isinstance(daemon, NotReadyError):
        known = node_from(daemon)
        return replace(node, capacities=known.capacities, capacity_problems=known.capacity_problems)
    answers = VerbsProcess(machine.settings.verbs_python).ask([device.name for device in devices]) if devices else {}
    told = {device.id: answers[device.name] for device in devices}
    return replace(
        node,
        capacities={key: it.capacity for key, it in told.items() if it.capacity is not None},
        capacity_problems={key: it.problem for key, it in told.items()},
    )


def _can_be_given(device: RdmaDevice, modes: Collection[Mode]) -> bool:
    return not device.in_use and (Mode.SHARED in modes or not device.ties)


def _use_words(node: Node) -> str:
    used = [f"{device.name} ({'; '.join(device.in_use)})" for device in node.devices if device.in_use]
    tied = [f"{it.name} ({'; '.join(it.ties)})" for it in node.devices if it.ties and not it.in_use]
    words = f", of which the host uses {', '.join(used)}" if used else ", none in use by the host"
    return f"{words}; can only be shared: {', '.join(tied)}" if tied else words


def _wrong_nodes(machine: Machine, chars: list[CharDevice]) -> Iterator[str]:
    for char in chars:
        path = machine.settings.dev_root / char.path.removeprefix("/dev/")
        try:
            found = path.stat()
        except OSError as error:
            yield f"{path}: {error.strerror}"
            continue
        if not stat.S_ISCHR(found.st_mode):
            yield f"{path} is no character device"
        elif (os.major(found.st_rdev), os.minor(found.st_rdev)) != (char.major, char.minor):
            yield f"{path} is not {char.major}:{char.minor}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"

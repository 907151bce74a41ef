"""Checks of the kernel, and of this process's privileges."""

from __future__ import annotations

import os
from pathlib import Path

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.decide.policy import configured_policy
from nri_rdma.doors.nri.runtimes import parse_release
from nri_rdma.errors import InventoryError
from nri_rdma.host.cgroup import RDMA_PEAK, SUBTREE_CONTROL, has_rdma_controller
from nri_rdma.host.netlink.namespaces.proc_sys import NET
from nri_rdma.model.device import RdmaNetns
from nri_rdma.model.edits import RDMA_MAX
from nri_rdma.model.request import Mode

OLDEST_KERNEL = (5, 14, 0)
"""The first release with SO_NETNS_COOKIE, which identifies a pod's network namespace."""
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # include/uapi/linux/capability.h


def release(machine: Machine) -> Finding:
    """Check that the kernel is Linux 5.14 or newer."""
    try:
        text = (machine.proc / "sys/kernel/osrelease").read_text().strip()
    except OSError as error:
        return not_applicable("kernel", f"its release cannot be read: {error}")
    known = parse_release(text)
    if known is not None and known < OLDEST_KERNEL:
        return problem("kernel", f"Linux {text}, and 5.14 is needed (SO_NETNS_COOKIE)", "boot Linux 5.14 or newer")
    return ok("kernel", f"Linux {text}")


def privileges(machine: Machine) -> Finding:
    """Check that this process has the capabilities that the daemon needs."""
    try:
        status = (machine.proc / "self/status").read_text()
    except OSError as error:
        return not_applicable("privileges", f"they cannot be read: {error}")
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    held = int(line.split()[1], 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    if not lacking:
        return ok("privileges", " and ".join(_CAPABILITIES))
    are = "is" if len(lacking) == 1 else "are"
    words = f"{' and '.join(lacking)} {are} missing: pods that ask for a device exclusively are refused"
    if machine.is_root:
        names = ", ".join(name.removeprefix("CAP_") for name in lacking)
        fix = f"add {names} to securityContext.capabilities of the daemon's container, or run it on the host"
        return problem("privileges", words, fix)
    return not_applicable(
        "privileges", f"this user is not root; {words} by its daemon", "run `nri-rdma doctor` as root, too"
    )


def sysctls(machine: Machine) -> Finding:
    """Check that this process can write the sysctls of netdevs, which are restored when a netdev returns from a pod."""
    if not machine.is_root:
        return not_applicable("sysctls", "this user is not root", "run `nri-rdma doctor` as root, too")
    net = machine.writable_net()
    if net is None and not (machine.proc / "sys").exists():
        return problem("sysctls", f"no procfs is at {machine.proc}: the daemon does not start", "mount one there")
    if net is None:
        return problem(
            "sysctls",
            "/proc/sys is read-only here, and this process may not mount a procfs: no netdev can be moved into a pod",
            "add SYS_ADMIN to securityContext.capabilities of the daemon's container, with a seccompProfile and an"
            " appArmorProfile that allow fsopen, fsconfig and fsmount (RuntimeDefault does); or run it privileged",
        )
    if net != NET:
        return ok("sysctls", "/proc/sys is read-only here; the daemon writes through a procfs of its own")
    return ok("sysctls", f"{NET} takes writes")


def rdma_netns(machine: Machine) -> Finding:
    """Check that the kernel has an RDMA subsystem, and report what its network namespace mode (shared or exclusive)
    means for pods."""
    if isinstance(machine.node, InventoryError):
        return not_applicable("rdma netns", machine.node.what)
    node, _ = machine.node
    settings = machine.settings
    policy = configured_policy(settings)
    modes = {mode for pool in policy.pools.values() for mode in pool.modes}
    match node.rdma_netns:
        case RdmaNetns.SHARED:
            return ok(
                "rdma netns",
                "shared: exclusive devices give pods their netdevs, and stay visible to others (isolation soft);"
                " isolation: hard is refused",
            )
        case RdmaNetns.EXCLUSIVE if Mode.SHARED in modes:
            return warning(
                "rdma netns",
                "exclusive: devices move into pods, and mode shared, which a pool serves, is refused",
                'modes = ["exclusive"] in the pool, or `rdma system set netns shared` on the idle node',
            )
        case RdmaNetns.EXCLUSIVE:
            return ok("rdma netns", "exclusive: devices move into pods, where nobody else sees them (isolation hard)")
        case RdmaNetns.NONE:
            if node.devices:
                return warning(
                    "rdma netns",
                    f"the mode cannot be read, and {settings.sysfs_root} shows RDMA devices: only their netdevs"
                    " will move",
                    "`rdma system show`; a tree that is not the machine's own sysfs has none",
                )
            return problem(
                "rdma netns",
                "the kernel has no RDMA subsystem (ib_core is not there)",
                "load the driver of the NIC, such as `modprobe mlx5_ib`; without such a NIC, `modprobe rdma_rxe`",
            )


def rdma_cgroup(machine: Machine) -> Finding:
    """Check that RDMA limits of containers can be written: the cgroup v2 hierarchy is the host's, writable, and has the
    rdma controller."""
    root = machine.settings.cgroup_root
    if machine.is_in_container and _is_own_cgroup(machine):
        return warning(
            "rdma cgroup",
            f"{root} has this container's cgroup only: limits that the runtime does not write are refused",
            f"mount hostPath {root} into the daemon's container, writable",
        )
    if not (root / "cgroup.controllers").exists():
        return warning(
            "rdma cgroup",
            f"{root} is no unified (v2) hierarchy: requests with limits are refused",
            "boot with systemd.unified_cgroup_hierarchy=1, or give --cgroup-root",
        )
    if not has_rdma_controller(root):
        return warning(
            "rdma cgroup",
            f"{root} has no rdma controller: requests with limits are refused",
            "use a kernel with CONFIG_CGROUP_RDMA, and load ib_core",
        )
    if machine.is_root and not os.access(root / SUBTREE_CONTROL, os.W_OK):
        return warning(
            "rdma cgroup",
            f"{root} is read-only here: limits that the runtime does not write are refused (of several devices, and"
            " all with crun)",
            f"in a container mount hostPath {root}, writable; elsewhere remount it rw",
        )
    return ok("rdma cgroup", f"v2, with the rdma controller{_peak_words(root)}")


def _is_own_cgroup(machine: Machine) -> bool:
    """Return whether `cgroup_root` shows only this container's own cgroup instead of the host's hierarchy.

    The top folder of the whole hierarchy has no `cgroup.events` file, and that of a container's own cgroup has one. A
    mount from outside of this cgroup namespace, whose root begins with `/..`, shows the host's hierarchy all the same
    (cgroup_namespaces(7)).
    """
    root = machine.settings.cgroup_root
    mounted = machine.mount_of(root)
    return (root / "cgroup.events").exists() and (mounted is None or not mounted.root.startswith("/.."))


def _peak_words(root: Path) -> str:
    """Return a remark if this kernel keeps the limits of a removed cgroup; otherwise "". Such a kernel has no file
    `rdma.peak` in a cgroup that has `rdma.max`."""
    limited = next((folder.parent for folder in sorted(root.glob(f"*/{RDMA_MAX}"))), None)
    if limited is None or (limited / RDMA_PEAK).exists():
        return ""
    return "; this kernel keeps limits of a removed cgroup, so the daemon lifts them at a container's end"

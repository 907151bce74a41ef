"""Checks of the host resources that a daemon in a container needs: the host's network namespace, and the folders that
the daemon shares with the runtime and the kubelet.

A folder that exists only in the daemon's image does not help, because neither the runtime nor the kubelet reads it.
"""

from __future__ import annotations

import os
from pathlib import Path

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.errors import InventoryError
from nri_rdma.model.pool import PoolDoor

_OF_FIRST_NAMESPACE = "sys/net/core/netdev_max_backlog"
"""A sysctl that exists only in the machine's initial network namespace."""
_KUBELETS = "kubelet.sock"
_NETWORK, _CDI, _PLUGINS, _CLAIMS, _POD_RESOURCES = (
    "host network",
    "CDI folder",
    "device-plugins",
    "claims",
    "pod-resources",
)


def host_network(machine: Machine) -> Finding:
    """Check that the host's netdevs are in the network namespace of this process."""
    if (machine.proc / _OF_FIRST_NAMESPACE).exists():
        return ok(_NETWORK, "this process is in the host's network namespace")
    if not (machine.proc / "sys/net").exists():
        return not_applicable(_NETWORK, f"{machine.proc / 'sys/net'} cannot be seen")
    if isinstance(machine.node, InventoryError) or not machine.is_in_container:
        return not_applicable(_NETWORK, "this is not the machine's first network namespace: it counts as the host's")
    here = machine.links()
    away = [
        device.name
        for device in machine.node[0].devices
        if device.lacks_netdev or (device.netdevs and here.isdisjoint(it.name for it in device.netdevs))
    ]
    if not away:
        return not_applicable(_NETWORK, "this is not the machine's first network namespace: it has all netdevs")
    found = f"this container is not in the host's network namespace, where the netdevs of {', '.join(away)} are"
    harm = "pods that ask for one exclusively are refused"
    return problem(_NETWORK, f"{found}: {harm}", "hostNetwork: true in the daemon's pod")


def cdi_folder(machine: Machine) -> Finding:
    """Check that the runtime finds the CDI specs that the daemon writes for ResourceClaims and for containers with
    shares, units of a pool's extended resource."""
    settings, folder = machine.settings, machine.settings.cdi_dirs[-1]
    harm = [f"pods with claims of pool {_claimed(machine)} do not start"] if _claimed(machine) else []
    if _resources(machine) and settings.guard_hook is not None and _is_there(settings.guard_hook):
        harm.append(f"pods that ask for {_resources(machine)} stay Pending")
    if not harm:
        return not_applicable(_CDI, "no pool needs a CDI spec of the daemon's")
    fault = _fault(machine, folder, is_made=True)
    if fault:
        return _as_root_sees(machine, problem(_CDI, f"{fault}: {' and '.join(harm)}", _mount(folder, "writable")))
    return ok(_CDI, f"the daemon can write its specs into {folder}")


def device_plugins(machine: Machine) -> Finding:
    """Check that the daemon can register its extended resources with the kubelet: those of pools, and the guard
    resource.

    The guard resource only adds the guard, an OCI hook that keeps a container from starting without its devices.
    """
    folder, resources = machine.settings.device_plugin_dir, _resources(machine)
    if not resources:
        return not_applicable(_PLUGINS, 'no pool has door = "resource", and there is no guard resource')
    fault = _fault(machine, folder)
    if not fault and not _is_there(folder / _KUBELETS):
        fault = f"there is no {_KUBELETS} in {folder}"
    if fault:
        words = f"{fault}: {resources} cannot be registered with the kubelet, and pods that ask for it stay Pending"
        return _as_root_sees(machine, problem(_PLUGINS, words, _mount(folder, "writable")))
    hook = machine.settings.guard_hook
    if hook is not None and (machine.lacks(hook) or not _is_there(hook)):
        where = "not mounted from the host into this container" if machine.lacks(hook) else "not there"
        words = f"{hook} is {where}: containers with {resources} have no guard, or one that the runtime does not find"
        return warning(_PLUGINS, words, f"install it as docs/guard.md says; {_mount(hook.parent, 'readOnly')}")
    return ok(_PLUGINS, f"{folder} has the kubelet's socket, for {resources}")


def claims(machine: Machine) -> Finding:
    """Check that the kubelet finds the DRA driver, and that the daemon finds the kubelet's list of claims."""
    pools, plugins = _claimed(machine), machine.settings.kubelet_plugins_dir
    root = plugins.parent
    if not pools:
        return not_applicable(_CLAIMS, 'no pool has door = "claims"')
    fix = f"{_mount(root, 'writable')}, with mountPropagation: HostToContainer"
    if machine.lacks(root):
        words = f"the kubelet's {root} is not mounted into this container as a whole, so its list of claims is missing"
        return problem(_CLAIMS, f"{words}: pods with claims of pool {pools} do not start", fix)
    for folder in (plugins, root / "plugins_registry"):
        fault = _fault(machine, folder)
        if fault:
            words = f"{fault}: the kubelet does not find the driver, and pods with claims of pool {pools} do not start"
            return _as_root_sees(machine, problem(_CLAIMS, words, fix))
    mounted = machine.mount_of(root)
    if machine.is_in_container and mounted is not None and not mounted.groups:
        return warning(_CLAIMS, f"{root} is mounted without propagation: it keeps volumes of ended pods mounted", fix)
    return ok(_CLAIMS, f"{root} has the kubelet's folders, for pool {pools}")


def pod_resources(machine: Machine) -> Finding:
    """Check that the daemon can ask the kubelet which resources it allocated to pods."""
    socket = machine.settings.kubelet_socket
    if not (machine.is_in_pod or _resources(machine) or _claimed(machine)):
        return not_applicable(_POD_RESOURCES, "nothing here says that this node has a kubelet")
    lacks = machine.lacks(socket.parent)
    if _is_there(socket) and not lacks:
        return ok(_POD_RESOURCES, f"{socket}: the kubelet can be asked what it allocated to pods")
    where = "is not mounted into this container" if lacks else "is not there"
    words = f"{socket} {where}: pods are placed without knowing their GPUs, shares and claims from the kubelet"
    return _as_root_sees(machine, warning(_POD_RESOURCES, words, _mount(socket.parent, "readOnly")))


def _resources(machine: Machine) -> str:
    """Return the names of the resources that the daemon registers with the kubelet, joined by commas; "" if there are
    none."""
    settings = machine.settings
    named = [pool.resource for pool in settings.pools if pool.door is PoolDoor.RESOURCE]
    return ", ".join([*named, *([settings.guard_resource] if settings.guard_resource else [])])


def _claimed(machine: Machine) -> str:
    """Return the names of the pools whose devices are requested by ResourceClaims, joined by commas; "" if there are
    none."""
    return ", ".join(pool.name for pool in machine.settings.pools if pool.door is PoolDoor.CLAIMS)


def _fault(machine: Machine, folder: Path, *, is_made: bool = False) -> str:
    """Return why the daemon cannot write to a folder of the host; "" if it can. With `is_made`, the daemon creates the
    folder if it is missing, so an existing, writable parent folder suffices."""
    if machine.lacks(folder):
        return f"the host's {folder} is not mounted into this container"
    there = folder
    if is_made:
        there = next(path for path in (folder, *folder.parents) if _is_there(path))
    if not _is_there(there):
        return f"{folder} is not there"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def _is_there(path: Path) -> bool:
    """Return whether the path exists, as far as this user can see."""
    return os.access(path, os.F_OK)


def _as_root_sees(machine: Machine, finding: Finding) -> Finding:
    """Return the finding if this process runs as root. For another user, return "not applicable" with the finding's
    text, because root may see or write more than this user."""
    if machine.is_root:
        return finding
    return not_applicable(finding.check, f"as this user sees it, {finding.found}", "run `nri-rdma doctor` as root")


def _mount(folder: Path, how: str) -> str:
    return f"if the daemon is in a container, mount hostPath {folder} there, {how}"

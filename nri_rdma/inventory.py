"""What the node has: the hardware that sysfs tells, joined with the netdevs that are on the host now and their use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nri_rdma.model.device import Netdev, Node, RdmaDevice, Scan
from nri_rdma.model.link import LinkState
from nri_rdma.model.nldev import ObjectKind, RdmaNetdevs, RdmaObject

_PCI = "pci/"


def assemble(
    scan: Scan,
    links: Collection[LinkState],
    default_route_links: frozenset[int],
    rdma: Collection[RdmaNetdevs],
    *,
    rdma_cgroup: bool,
) -> Node:
    """The node of a scan, of the host's links and of what the kernel says of the RDMA devices, at one time. Pure."""
    told = {(item.name, item.node_guid): item for item in rdma}
    devices = tuple(
        _joined(
            device, scan.netdev_names[device.id], told.get((device.name, device.node_guid)), links, default_route_links
        )
        for device in scan.devices
    )
    return Node(
        devices=devices,
        gpus=scan.gpus,
        rdma_cm=scan.rdma_cm,
        rdma_netns=scan.rdma_netns,
        rdma_cgroup=rdma_cgroup,
    )


def in_use_reasons(
    link: LinkState, links: Collection[LinkState], default_route_links: frozenset[int]
) -> tuple[str, ...]:
    """Why a netdev belongs to the host and may not be given away; empty when it may. An address alone is no use."""
    names = {other.ifindex: other.name for other in links}
    reasons: list[str] = []
    if link.master:
        reasons.append(f"{link.name} is enslaved to {names.get(link.master, f'ifindex {link.master}')}")
    if link.ifindex in default_route_links:
        reasons.append(f"{link.name} carries a default route")
    children = sorted(other.name for other in links if other.lower == link.ifindex)
    if children:
        reasons.append(f"{link.name} has the child interface {', '.join(children)}")
    if link.xdp:
        reasons.append(f"{link.name} has an XDP program attached")
    return tuple(reasons)


def rdma_use_reasons(objects: Collection[RdmaObject]) -> tuple[str, ...]:
    """Why an RDMA device may not be moved away: whoever holds something on it would lose it. Empty when it may."""
    pids = sorted({item.pid or 0 for item in objects if item.kind is ObjectKind.CTX and not item.kernel_user})
    users = sorted({item.kernel_user for item in objects if item.kernel_user and item.kernel_user != _RDMA_CORE})
    return (
        *(f"process {pid or 'of another pid namespace'} has it open" for pid in pids),
        *(f"{it} uses it" for it in users),
    )


_RDMA_CORE = "ib_core"
"""Holds a queue pair on every device, for management datagrams, and makes a new one after a move."""


def _joined(
    device: RdmaDevice,
    names: tuple[str, ...],
    told: RdmaNetdevs | None,
    links: Collection[LinkState],
    default_route_links: frozenset[int],
) -> RdmaDevice:
    present = _own_links(device, names, told, links)
    return replace(
        device,
        netdevs=tuple(
            Netdev(name=link.name, ifindex=link.ifindex, mac=link.mac, mtu=link.mtu, up=link.up) for link in present
        ),
        in_use=(
            *_split_reasons(device),
            *(reason for link in present for reason in in_use_reasons(link, links, default_route_links)),
        ),
        kernel_index=told.index if told is not None else None,
    )


def _split_reasons(device: RdmaDevice) -> tuple[str, ...]:
    """Virtual functions are set up and carried by their physical one: who has that decides over all of them."""
    if not device.vf_count:
        return ()
    return (f"{device.name} has {device.vf_count} virtual function{'' if device.vf_count == 1 else 's'}",)


def _own_links(
    device: RdmaDevice, names: tuple[str, ...], told: RdmaNetdevs | None, links: Collection[LinkState]
) -> list[LinkState]:
    """The host's links that are a device's, in the order of its ports.

    sysfs tells names only, as they are in the namespace of each netdev. So where the kernel knows the device, its word
    counts, and beside it only what sits on the same function (IPoIB); names alone count in a tree of another node. What
    the host does not have now is in a namespace, and left out.
    """
    by_name, by_number = ({link.name: link for link in links}, {link.ifindex: link for link in links})
    named = [by_name[name] for name in names if name in by_name]
    if told is None:
        return [link for link in named if _may_belong(link, device)]
    own = [by_number[number] for number in told.ifindexes if number in by_number]
    own += [link for link in named if device.pci is not None and link.parent == f"{_PCI}{device.pci}"]
    return list({link.ifindex: link for link in own}.values())


def _may_belong(link: LinkState, device: RdmaDevice) -> bool:
    """A link of the host that is called as one in a pod sits on another function. A virtual one (a bond, soft RoCE's)
    sits on none."""
    return device.pci is None or not link.parent.startswith(_PCI) or link.parent == f"{_PCI}{device.pci}"

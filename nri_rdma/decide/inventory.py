"""Combines a sysfs scan of the hardware with the netdevs that the host has now, and with their use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from nri_rdma.decide.own_tables import default_route_reasons
from nri_rdma.model.device import IPOIB, EbpfPrograms, Netdev, Node, RdmaDevice, RdmaNetns, Scan
from nri_rdma.model.link import LinkState
from nri_rdma.model.nldev import ObjectKind, RdmaNetdevs, RdmaObject
from nri_rdma.model.usage import Address, Change, HostSocket, HostUse, Watched

_PCI = "pci/"
_MAX_NAMED = 3
"""The most sockets that one reason names."""
_DHCP_CLIENT_PORTS = frozenset({("udp", 68), ("udp", 546)})
"""The ports of DHCP clients. Their sockets do not count as use, because they only renew the lease."""
_RDMA_CORE = "ib_core"
"""The kernel module that holds a queue pair for management datagrams on every device, and creates a new one after a
move."""
_IPOIB = "ib_ipoib"
_DRIVERS = frozenset(
    {"bng_re", "bnxt_re", "efa", "erdma", "hfi1", "hns_roce_hw_v2", "ib_mthca", "ionic_rdma", "irdma", "iw_cxgb4"}
    | {"mana_ib", "mlx4_ib", "mlx5_ib", "ocrdma", "qedr", "rdma_rxe", "rdmavt", "siw", "usnic_verbs", "vmw_pvrdma"}
)
"""The RDMA drivers of the kernel. Objects that they hold on a device serve its users and do not count as use (mlx5_ib
holds a queue pair for memory registration)."""


def assemble(
    scan: Scan,
    use: HostUse,
    rdma: Collection[RdmaNetdevs] | None,
    holders: Mapping[int, Collection[RdmaObject]] = MappingProxyType({}),
    *,
    rdma_cgroup: bool,
    is_own_tree: bool = False,
    ignored: Collection[int] = (),
) -> Node:
    """Return the node, from a scan, the host's links and the kernel's report about the RDMA devices, all of one time.
    Pure.

    `rdma` is None if the kernel has no RDMA subsystem and so reports nothing. `holders` are the RDMA objects in use, by
    the kernel's device index; objects of the processes in `ignored` do not count. `is_own_tree`: the scan is of this
    machine's own sysfs, so that the kernel reports every complete device.
    """
    told = {(item.name, item.node_guid): item for item in rdma or ()}
    others = {index: [item for item in objects if item.pid not in ignored] for index, objects in holders.items()}
    devices = tuple(
        _with_holders(
            _joined(
                device,
                scan.netdev_names[device.id],
                told.get((device.name, device.node_guid)),
                use,
                is_told=rdma is not None and is_own_tree,
            ),
            scan.rdma_netns,
            others,
            use,
        )
        for device in scan.devices
    )
    return Node(
        devices=devices,
        gpus=scan.gpus,
        rdma_cm=scan.rdma_cm,
        rdma_netns=scan.rdma_netns,
        rdma_cgroup=rdma_cgroup,
        numa_nodes=scan.numa_nodes,
    )


def watched(scan: Scan, node: Node, use: HostUse) -> Watched:
    """Return the links, routing tables, names and addresses whose changes can change the node."""
    ifindexes = frozenset(netdev.ifindex for device in node.devices for netdev in device.netdevs)
    return Watched(
        ifindexes=ifindexes,
        tables=frozenset(it.table for ifindex in ifindexes for it in use.routing.routes.get(ifindex, ())),
        names=frozenset(name for names in scan.netdev_names.values() for name in names),
        addresses={
            ifindex: frozenset(address.packed for address in addresses) for ifindex, addresses in use.addresses.items()
        },
    )


def matters(change: Change, to: Watched) -> bool:
    """Return whether a change can change the node. Changes of pods' own links, frequent on a busy node, cannot."""
    if change.address and all(change.address in to.addresses.get(ifindex, ()) for ifindex in change.ifindexes):
        return False
    return (
        change.is_default_route
        or (change.rule_table is not None and bool(to.tables) and change.rule_table in {0, *to.tables})
        or change.is_physical  # a new netdev of an RDMA device may have any name
        or not change.ifindexes.isdisjoint(to.ifindexes)
        or change.name in to.names
    )


_NO_PROGRAMS = EbpfPrograms()


def netdev_of(link: LinkState, addresses: tuple[str, ...] = (), programs: EbpfPrograms = _NO_PROGRAMS) -> Netdev:
    """Return a link of the host as a Netdev, with these addresses and eBPF programs."""
    return Netdev(
        name=link.name,
        ifindex=link.ifindex,
        mac=link.mac,
        mtu=link.mtu,
        up=link.up,
        max_mtu=link.max_mtu,
        unreturnable=link.unreturnable,
        kind=link.kind,
        alias=link.alias,
        addresses=addresses,
        programs=programs,
    )


def in_use_reasons(link: LinkState, use: HostUse) -> tuple[str, ...]:
    """Return why the host needs a netdev, so that it may not be given away; empty if it may. An address alone is no
    reason."""
    own = use.addresses.get(link.ifindex, frozenset())
    of_node = (f"{link.name} has the node's address {it}" for it in use.lifelines.node_ips if it in own)
    return (*_reasons_of_links(link, use), *of_node)


def socket_reasons(link: LinkState, use: HostUse) -> tuple[str, ...]:
    """Return a reason for each address with host sockets (of host processes and of pods on the host's network) that
    would lose this netdev or its address."""
    own = use.addresses.get(link.ifindex, frozenset())
    by_address: dict[Address | None, list[HostSocket]] = {}
    for item in use.sockets:
        is_tied = item.ifindex == link.ifindex or (not item.ifindex and item.address in own)
        if is_tied and (item.protocol, item.port) not in _DHCP_CLIENT_PORTS:
            by_address.setdefault(item.address, []).append(item)
    return tuple(
        f"{link.name} has the address {address} of {_socket_words(by_address[address])}"
        if address is not None
        else f"{link.name} has, bound to it, {_socket_words(by_address[address])}"
        for address in sorted(by_address, key=str)
    )


def kernel_use_reasons(
    objects: Collection[RdmaObject], rdma_netns: RdmaNetns, *, ipoib_is_idle: bool = False
) -> tuple[str, ...]:
    """Return a reason for each part of the kernel that uses an RDMA device and would lose it by a move; empty if none
    does.

    IPoIB is such a part only if the RDMA device moves without the IPoIB netdev. It does not count if it is idle, or if
    its netdev goes into the pod, too, and takes its objects along.
    """
    goes_along = rdma_netns is not RdmaNetns.EXCLUSIVE or ipoib_is_idle
    idle = _DRIVERS | {_RDMA_CORE} | ({_IPOIB} if goes_along else set())
    users = sorted({item.kernel_user for item in objects} - idle - {""})
    return tuple(f"{user} uses it ({_kinds(user, objects)})" for user in users)


def ipoib_is_idle(device: RdmaDevice, use: HostUse) -> bool:
    """Return whether the host has IPoIB netdevs of a device, all of them down and without an address. The module
    ib_ipoib creates such netdevs, with queue pairs, as soon as it is loaded."""
    own = [it for it in use.links if it.kind == IPOIB and device.pci is not None and it.parent == f"{_PCI}{device.pci}"]
    return bool(own) and not any(link.up or use.addresses.get(link.ifindex) for link in own)


def open_reasons(objects: Collection[RdmaObject]) -> tuple[str, ...]:
    """Return a reason for each process that has an RDMA device open and would lose it by a move."""
    contexts = [item for item in objects if item.kind is ObjectKind.CTX and not item.kernel_user]
    processes = {item.pid or 0: item.process for item in contexts}
    return tuple(f"{_process_words(pid, processes[pid])} has it open" for pid in sorted(processes))


# Links


def _reasons_of_links(link: LinkState, use: HostUse) -> Iterator[str]:
    if link.master:
        master = next((it.name for it in use.links if it.ifindex == link.master), f"ifindex {link.master}")
        yield f"{link.name} is enslaved to {master}"
    if link.ifindex in use.default_route_links:
        yield f"{link.name} carries a default route"
    yield from default_route_reasons(link, use.routing)
    if link.ifindex in use.api_server_links:
        yield f"{link.name} carries the route to the API server {use.lifelines.api_server}"
    children = sorted(other.name for other in use.links if other.lower == link.ifindex)
    if children:
        yield f"{link.name} has the child interface {', '.join(children)}"
    slaves = sorted(other.name for other in use.links if other.master == link.ifindex)
    if slaves:  # the netdev of an RDMA LAG is the bond (mlx5_bond_0)
        yield f"{link.name} is made of {', '.join(slaves)}"
    if link.xdp:
        yield f"{link.name} has an XDP program attached"


def _socket_words(sockets: Collection[HostSocket]) -> str:
    ports = sorted({(it.protocol, it.port) for it in sockets})
    more = f" and {len(ports) - _MAX_NAMED} more" if len(ports) > _MAX_NAMED else ""
    named = ", ".join(f"{protocol} port {port}" for protocol, port in ports[:_MAX_NAMED])
    return f"{len(sockets)} host socket{'' if len(sockets) == 1 else 's'} ({named}{more})"


# Devices


def _with_holders(
    device: RdmaDevice, rdma_netns: RdmaNetns, holders: Mapping[int, Collection[RdmaObject]], use: HostUse
) -> RdmaDevice:
    objects = holders.get(device.kernel_index, ()) if device.kernel_index is not None else ()
    if not objects:
        return device
    by_kernel = kernel_use_reasons(objects, rdma_netns, ipoib_is_idle=ipoib_is_idle(device, use))
    return replace(
        device,
        in_use=(*device.in_use, *by_kernel),
        used_by_some=(*device.used_by_some, *open_reasons(objects)),
    )


def _kinds(user: str, objects: Collection[RdmaObject]) -> str:
    return ", ".join(sorted({str(item.kind) for item in objects if item.kernel_user == user}))


def _process_words(pid: int, name: str) -> str:
    if not pid:
        return "process of another pid namespace"
    return f"process {pid} ({name})" if name else f"process {pid}"


def _joined(
    device: RdmaDevice, names: tuple[str, ...], told: RdmaNetdevs | None, use: HostUse, *, is_told: bool
) -> RdmaDevice:
    by_name = told is None and not is_told
    present = _links_by_name(device, names, use.links) if by_name else _own_links(device, names, told, use.links)
    return replace(
        device,
        netdevs=tuple(
            netdev_of(it, use.networks.get(it.ifindex, ()), use.programs.get(it.ifindex, _NO_PROGRAMS))
            for it in present
        ),
        in_use=(
            *_split_reasons(device),
            *(reason for link in present for reason in in_use_reasons(link, use)),
        ),
        used_by_some=tuple(reason for link in present for reason in socket_reasons(link, use)),
        kernel_index=told.index if told is not None else None,
    )


def _split_reasons(device: RdmaDevice) -> tuple[str, ...]:
    """Return why a device with virtual functions cannot be given to one pod alone: the physical function configures and
    carries them, so that the pod would control all of them."""
    if not device.vf_count:
        return ()
    return (f"{device.name} has {device.vf_count} virtual function{'' if device.vf_count == 1 else 's'}",)


def _own_links(
    device: RdmaDevice, names: tuple[str, ...], told: RdmaNetdevs | None, links: Collection[LinkState]
) -> list[LinkState]:
    """Return the host's links that belong to a device, in the order of its ports.

    The kernel's report decides, because sysfs has only names, as they are in the namespace of each netdev. In addition,
    links on the same PCI function count (IPoIB). While a device appears or disappears, sysfs has it but the kernel does
    not report it; a soft device, which is on no PCI function, then has no links. Links in other namespaces are left
    out.
    """
    by_number = {link.ifindex: link for link in links}
    own = [by_number[number] for number in (told.ifindexes if told is not None else ()) if number in by_number]
    own += [link for link in _named(names, links) if device.pci is not None and link.parent == f"{_PCI}{device.pci}"]
    return list({link.ifindex: link for link in own}.values())


def _links_by_name(device: RdmaDevice, names: tuple[str, ...], links: Collection[LinkState]) -> list[LinkState]:
    """Return a device's links by their names. Used if the tree is of another node or if the kernel has no RDMA
    subsystem: there is no other source."""
    return [link for link in _named(names, links) if _may_belong(link, device)]


def _named(names: tuple[str, ...], links: Collection[LinkState]) -> list[LinkState]:
    by_name = {link.name: link for link in links}
    return [by_name[name] for name in names if name in by_name]


def _may_belong(link: LinkState, device: RdmaDevice) -> bool:
    """Return whether a link with the right name can belong to the device: one on another PCI function does not, and has
    the name by chance. A virtual link (a bond, soft RoCE's) is on no function."""
    return device.pci is None or not link.parent.startswith(_PCI) or link.parent == f"{_PCI}{device.pci}"

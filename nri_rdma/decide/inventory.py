"""Joins the hardware of a sysfs scan with the netdevs that are on the host now and their use."""

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
"""Most sockets that one reason names; further ones are left out."""
_DHCP_CLIENT_PORTS = frozenset({("udp", 68), ("udp", 546)})
"""A DHCP client's socket does not count as use: it only renews the lease."""
_RDMA_CORE = "ib_core"
"""The kernel module that holds a queue pair on every device, for management datagrams, and makes a new one after a
move."""
_IPOIB = "ib_ipoib"
_DRIVERS = frozenset(
    {"bng_re", "bnxt_re", "efa", "erdma", "hfi1", "hns_roce_hw_v2", "ib_mthca", "ionic_rdma", "irdma", "iw_cxgb4"}
    | {"mana_ib", "mlx4_ib", "mlx5_ib", "ocrdma", "qedr", "rdma_rxe", "rdmavt", "siw", "usnic_verbs", "vmw_pvrdma"}
)
"""Modules of drivers/infiniband/hw and sw: objects that these hold on a device belong to its users (mlx5_ib has a queue
pair for memory registration)."""


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
    """Return the node of a scan, of the host's links and of the kernel's report about the RDMA devices, at one time.
    Pure.

    `rdma` is None where the kernel has no RDMA subsystem, so that it reports none; `holders` says by the kernel's index
    who holds what on them, of which the processes in `ignored` do not count. `is_own_tree`: what was scanned is this
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
    """Return the links whose changes change the node."""
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
    """Return whether the node may be different after a change. Changes of pods' own links, many on a busy node, do not
    matter."""
    if change.address and all(change.address in to.addresses.get(ifindex, ()) for ifindex in change.ifindexes):
        return False
    return (
        change.is_default_route
        or (change.rule_table is not None and bool(to.tables) and change.rule_table in {0, *to.tables})
        or change.is_physical  # an RDMA device's netdev may come under any name
        or not change.ifindexes.isdisjoint(to.ifindexes)
        or change.name in to.names
    )


_NO_PROGRAMS = EbpfPrograms()


def netdev_of(link: LinkState, addresses: tuple[str, ...] = (), programs: EbpfPrograms = _NO_PROGRAMS) -> Netdev:
    """Return the node's netdev of a link of the host with these addresses and programs."""
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
    """Return why a netdev belongs to the host and may not be given away; empty when it may. An address alone is no
    use."""
    own = use.addresses.get(link.ifindex, frozenset())
    of_node = (f"{link.name} has the node's address {it}" for it in use.lifelines.node_ips if it in own)
    return (*_reasons_of_links(link, use), *of_node)


def socket_reasons(link: LinkState, use: HostUse) -> tuple[str, ...]:
    """Return the sockets of the host that would lose a netdev's address, or the netdev: those of its processes, and
    those of pods on its network."""
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
    """Return the parts of the kernel that use an RDMA device, and would lose it by a move. Empty when none does.

    IPoIB counts only where the RDMA device would move without it, unless it is idle: else its netdev goes into the pod,
    and takes along what it holds.
    """
    goes_along = rdma_netns is not RdmaNetns.EXCLUSIVE or ipoib_is_idle
    idle = _DRIVERS | {_RDMA_CORE} | ({_IPOIB} if goes_along else set())
    users = sorted({item.kernel_user for item in objects} - idle - {""})
    return tuple(f"{user} uses it ({_kinds(user, objects)})" for user in users)


def ipoib_is_idle(device: RdmaDevice, use: HostUse) -> bool:
    """Return whether the host has the IPoIB netdevs of a device, and none of them is up or has an address. The module
    ib_ipoib makes them, and holds queue pairs for them, as soon as it is loaded."""
    own = [it for it in use.links if it.kind == IPOIB and device.pci is not None and it.parent == f"{_PCI}{device.pci}"]
    return bool(own) and not any(link.up or use.addresses.get(link.ifindex) for link in own)


def open_reasons(objects: Collection[RdmaObject]) -> tuple[str, ...]:
    """Return the processes that have an RDMA device open, and would lose it by a move."""
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
    """Return why a device with virtual functions cannot be one pod's alone: they are set up and carried by their
    physical one, so that its pod would decide over all of them."""
    if not device.vf_count:
        return ()
    return (f"{device.name} has {device.vf_count} virtual function{'' if device.vf_count == 1 else 's'}",)


def _own_links(
    device: RdmaDevice, names: tuple[str, ...], told: RdmaNetdevs | None, links: Collection[LinkState]
) -> list[LinkState]:
    """Return the host's links that are a device's, in the order of its ports.

    sysfs has names only, as they are in the namespace of each netdev. So the kernel's report counts, and beside it only
    links on the same function (IPoIB). While a device comes or goes, sysfs has it and the kernel does not report it:
    then a soft device, which sits on no function, has no links. A link that the host does not have now is in a
    namespace, and left out.
    """
    by_number = {link.ifindex: link for link in links}
    own = [by_number[number] for number in (told.ifindexes if told is not None else ()) if number in by_number]
    own += [link for link in _named(names, links) if device.pci is not None and link.parent == f"{_PCI}{device.pci}"]
    return list({link.ifindex: link for link in own}.values())


def _links_by_name(device: RdmaDevice, names: tuple[str, ...], links: Collection[LinkState]) -> list[LinkState]:
    """Return the links by name, in a tree of another node, and when the kernel has no RDMA subsystem: there is no other
    source."""
    return [link for link in _named(names, links) if _may_belong(link, device)]


def _named(names: tuple[str, ...], links: Collection[LinkState]) -> list[LinkState]:
    by_name = {link.name: link for link in links}
    return [by_name[name] for name in names if name in by_name]


def _may_belong(link: LinkState, device: RdmaDevice) -> bool:
    """Return whether a link may be the device's. A link of the host with the name of a link in a pod sits on another
    function. A virtual one (a bond, soft RoCE's) sits on none."""
    return device.pci is None or not link.parent.startswith(_PCI) or link.parent == f"{_PCI}{device.pci}"

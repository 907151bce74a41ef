"""Combines a sysfs scan of the hardware with the netdevs that the host has now, and with the host's use of them."""

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
"""The kernel module that holds a queue pair for management datagrams on every device. When the device moves, it creates
a new one."""
_IPOIB = "ib_ipoib"
_DRIVERS = frozenset(
    {"bng_re", "bnxt_re", "efa", "erdma", "hfi1", "hns_roce_hw_v2", "ib_mthca", "ionic_rdma", "irdma", "iw_cxgb4"}
    | {"mana_ib", "mlx4_ib", "mlx5_ib", "ocrdma", "qedr", "rdma_rxe", "rdmavt", "siw", "usnic_verbs", "vmw_pvrdma"}
)
"""The RDMA drivers of the kernel. Objects that a driver holds on a device do not count as use, because they serve the
device's users (mlx5_ib holds a queue pair for memory registration)."""


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
    """Return the node from a scan of sysfs (`scan`), the host's links and their use (`use`), and the kernel's report
    about the RDMA devices (`rdma`). All three must be of one time. Pure.

    `rdma` is None if the kernel has no RDMA subsystem and so reports nothing. `holders` are the RDMA objects in use, by
    the kernel's device index; objects of the processes in `ignored` do not count. `is_own_tree`: `scan` is of this
    machine's own sysfs. A device without a report is then just appearing or disappearing, and links are not found by
    its name.
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
    """Return the links, routing tables, names and addresses whose changes can change the node's inventory."""
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
    """Return whether a change on the host can change the node's inventory. `to` are the links, tables, names and
    addresses on which the inventory depends. Changes of pods' own links, which are frequent, do not matter."""
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
    """Return a Netdev with the facts of a host's link, and with the given addresses and eBPF programs."""
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
    """Return the reasons why the host needs a netdev and must not give it to a pod; empty if there are none. An address
    is a reason only if it is the node's address."""
    own = use.addresses.get(link.ifindex, frozenset())
    of_node = (f"{link.name} has the node's address {it}" for it in use.lifelines.node_ips if it in own)
    return (*_reasons_of_links(link, use), *of_node)


def socket_reasons(link: LinkState, use: HostUse) -> tuple[str, ...]:
    """Return a reason for each address of the netdev on which host processes have sockets: the sockets would stop
    working if the netdev moved into a pod. Processes of pods on the host's network count as host processes."""
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
    """Return a reason for each kernel module that uses an RDMA device and would lose it by the device's move into a
    pod; empty if there is none. RDMA drivers and ib_core do not count.

    The module ib_ipoib counts only with RdmaNetns.EXCLUSIVE, because the RDMA device then moves without the IPoIB
    netdev. It does not count if `ipoib_is_idle`: its netdevs are down and without addresses.
    """
    goes_along = rdma_netns is not RdmaNetns.EXCLUSIVE or ipoib_is_idle
    idle = _DRIVERS | {_RDMA_CORE} | ({_IPOIB} if goes_along else set())
    users = sorted({item.kernel_user for item in objects} - idle - {""})
    return tuple(f"{user} uses it ({_kinds(user, objects)})" for user in users)


def ipoib_is_idle(device: RdmaDevice, use: HostUse) -> bool:
    """Return whether the host has IPoIB netdevs of a device, and all of them are down and without an address. The
    module ib_ipoib creates such netdevs, with queue pairs, as soon as it is loaded."""
    own = [it for it in use.links if it.kind == IPOIB and device.pci is not None and it.parent == f"{_PCI}{device.pci}"]
    return bool(own) and not any(link.up or use.addresses.get(link.ifindex) for link in own)


def open_reasons(objects: Collection[RdmaObject]) -> tuple[str, ...]:
    """Return a reason for each process that has an RDMA device open and would lose it if the device moved into a
    pod."""
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
    """Return the reason why a device with virtual functions cannot be given to one pod alone; empty for other devices.
    The physical function configures and carries its virtual functions, so that the pod would control all of them."""
    if not device.vf_count:
        return ()
    return (f"{device.name} has {device.vf_count} virtual function{'' if device.vf_count == 1 else 's'}",)


def _own_links(
    device: RdmaDevice, names: tuple[str, ...], told: RdmaNetdevs | None, links: Collection[LinkState]
) -> list[LinkState]:
    """Return the host's links that belong to a device, in the order of its ports.

    Links that the kernel reports for the device (`told`) belong to it by their interface index. Names from sysfs
    (`names`) are not enough, because a name may be that of a netdev in another namespace. By name only links on the
    device's PCI function are added (IPoIB). A soft device without a report, which is just appearing or disappearing,
    has no links.
    """
    by_number = {link.ifindex: link for link in links}
    own = [by_number[number] for number in (told.ifindexes if told is not None else ()) if number in by_number]
    own += [link for link in _named(names, links) if device.pci is not None and link.parent == f"{_PCI}{device.pci}"]
    return list({link.ifindex: link for link in own}.values())


def _links_by_name(device: RdmaDevice, names: tuple[str, ...], links: Collection[LinkState]) -> list[LinkState]:
    """Return the host's links that belong to a device, found by their names in sysfs (`names`). Used if there is no
    report of the kernel: the sysfs files are a copy from another machine, or the kernel has no RDMA subsystem."""
    return [link for link in _named(names, links) if _may_belong(link, device)]


def _named(names: tuple[str, ...], links: Collection[LinkState]) -> list[LinkState]:
    by_name = {link.name: link for link in links}
    return [by_name[name] for name in names if name in by_name]


def _may_belong(link: LinkState, device: RdmaDevice) -> bool:
    """Return whether a link that has a name of the device's netdevs can belong to the device. A link on another PCI
    function only has the name by chance. A virtual link (a bond, soft RoCE's) is on no PCI function and can belong."""
    return device.pci is None or not link.parent.startswith(_PCI) or link.parent == f"{_PCI}{device.pci}"

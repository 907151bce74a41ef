"""The variables that tell libraries which GID a pod's ports send with, and sentences for people about the GIDs.

NCCL (2.21 and newer) chooses a GID by address family, range and RoCE version (`ncclIbGetGidIndex` in net_ib). An index
overrides all three, and is the only choice in older releases. UCX prefers RoCE v2 to v1, then IPv4 to IPv6, and takes
the first such entry. UCX's index overrides its preferences and applies to all devices (`uct_ib_device_select_gid`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network

from nri_rdma.decide.gids import choose
from nri_rdma.model.gid import Gid, GidType, PortGid
from nri_rdma.model.network import IpAddress

FAMILY, RANGE, VERSION, INDEX = (
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_IB_GID_INDEX",
)
UCX_INDEX = "UCX_IB_GID_INDEX"
CHOICES = (frozenset({FAMILY, RANGE, VERSION, INDEX}), frozenset({UCX_INDEX, "UCX_IB_ROCE_SUBNETS"}))
"""The variables that together choose a GID, for NCCL and for UCX. If a container or its pool sets one variable of a
group, nri-rdma sets none of that group. NCCL's index would override the others, and UCX fails an interface if both of
its variables are set."""
GID_VARIABLES = (FAMILY, RANGE, VERSION, INDEX, UCX_INDEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gids:
    """The GIDs of a pod's ports after an attach. `variables` tell NCCL and UCX which GIDs to use, for a container that
    gets all devices in `computing`. They are computed in advance, because CreateContainer waits for them."""

    ports: tuple[PortGid, ...] = ()
    computing: frozenset[str] = frozenset()
    """The names of the devices that NCCL and UCX are told to use; devices that are only for storage are not among
    them."""
    variables: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    """Why the GIDs are unknown; "" if they are known."""
    first: tuple[PortGid, ...] = ()
    """The GIDs at the end of the attach, if the ports have been read again since; otherwise empty."""

    @classmethod
    def of(cls, ports: Iterable[PortGid], computing: Iterable[str]) -> Gids:
        """Return the GIDs of these ports, with the variables that choose them in NCCL and UCX. `computing` are the
        names of the devices that NCCL and UCX are told to use."""
        found, named = tuple(ports), frozenset(computing)
        return cls(ports=found, computing=named, variables=_variables([it for it in found if it.device in named]))

    def variables_of(self, devices: Collection[str]) -> tuple[tuple[str, str], ...]:
        """Return the variables that choose GIDs in NCCL and UCX, for a container in which these libraries use only
        `devices`."""
        return _variables([it for it in self.ports if it.device in devices])

    def since(self, before: Gids) -> Gids:
        """Return a copy of this value that also has the GIDs from the end of the attach, as its attribute `first`.
        `before` is an earlier reading of the ports."""
        return replace(self, first=before.first or before.ports)

    @property
    def moved(self) -> tuple[tuple[PortGid, PortGid], ...]:
        """The ports whose GID or GID index differs from that at the end of the attach, each as a pair: then and now.
        The variables of running containers may be outdated for such a port."""
        now = {it.place: it for it in self.ports}
        pairs = ((it, now[it.place]) for it in self.first if it.gid is not None and it.place in now)
        return tuple((before, here) for before, here in pairs if before.gid != here.gid)


NO_GIDS = Gids()


def joined(gids: Sequence[Gids]) -> Gids:
    """Return the GIDs of several attaches of one pod as one value."""
    if len(gids) == 1:  # the usual case, kept fast because CreateContainer waits for it
        return gids[0]
    return Gids.of((port for it in gids for port in it.ports), (name for it in gids for name in it.computing))


def with_problem(problem: str) -> Gids:
    """Return a Gids without ports for GIDs that are unknown. `problem` is the reason."""
    return replace(NO_GIDS, problem=problem)


def port_gid(
    device: str,
    port: int,
    table: Collection[Gid],
    own: Collection[IpAddress],
    roce_version: int,
    foreign: Collection[str] = (),
) -> PortGid:
    """Return the GID with which a port sends in a pod. `table` is the port's GID table, and `own` are the pod's
    addresses. A GID of a netdev in `foreign` counts only if its address is in `own`, because other GIDs of that netdev
    belong to other pods."""
    gid = choose([it for it in table if it.netdev not in foreign or it.address in own], own, roce_version)
    if gid is None or gid.type is GidType.IB:
        return PortGid(device=device, port=port, gid=gid, is_own=gid is not None)
    others = {it.address for it in table if not it.value.is_unspecified and not it.address.is_link_local}
    return PortGid(
        device=device,
        port=port,
        gid=gid,
        is_own=gid.address in own,
        others=tuple(sorted(others - {gid.address}, key=lambda it: (it.version, int(it)))),
    )


def gid_words(port: PortGid) -> str:
    """Return a sentence for people about a port's GID."""
    gid = port.gid
    if gid is None:
        return f"{port.place}: no GID that it could send by, so that its traffic goes nowhere"
    if gid.type is GidType.IB:
        return f"{port.place}: GID {gid.index}, {gid.value} ({gid.type})"
    words = f"{port.place}: GID {gid.index}, {gid.address} ({gid.type})"
    if port.is_own:
        return words
    what = f"{words}: no address of the pod has a GID on this device"
    if gid.address.is_link_local:
        return f"{what}, and packets with a link-local GID are not routed"
    return f"{what}, so that it sends with an address of the host"


def moved_words(gids: Gids) -> tuple[str, ...]:
    """Return a sentence for people about each port whose GID changed since the end of the attach."""
    return tuple(
        f"{now.place}: the GID is {_entry(now.gid)} now, and was {_entry(before.gid)} when the pod started: a program"
        " that was told the old entry sends by another GID, or not at all; restart its container"
        for before, now in gids.moved
    )


def _entry(gid: Gid | None) -> str:
    return f"{gid.index}, {gid.address}" if gid is not None else "none"


def _variables(ports: Collection[PortGid]) -> tuple[tuple[str, str], ...]:
    """Return the variables that tell NCCL and UCX which GIDs these ports send with. Empty if no port has a RoCE GID.
    Also empty if some port has only a link-local GID: a better one may appear later, and the libraries find that only
    if no variable chooses a GID."""
    gids = [it.gid for it in ports if it.gid is not None]
    roce = [gid for gid in gids if gid.type is not GidType.IB]
    if not roce or any(gid.address.is_link_local for gid in roce):
        return ()
    told: dict[str, str] = {}
    families = {gid.address.version for gid in roce}
    if families == {6}:
        told[FAMILY] = "AF_INET6"
    if len(families) == 1 and (prefix := _range([gid.address for gid in roce], [it for p in ports for it in p.others])):
        told[RANGE] = prefix
    if all(gid.type is GidType.ROCE_V1 for gid in roce):
        told[VERSION] = "1"
    if len(gids) == len(ports) and len({gid.index for gid in roce}) == 1:
        told[INDEX] = str(roce[0].index)
        if len({gid.index for gid in gids}) == 1:  # UCX takes it for ports of InfiniBand, too
            told[UCX_INDEX] = told[INDEX]
    return tuple(told.items())


def _range(chosen: Sequence[IpAddress], others: Iterable[IpAddress]) -> str:
    """Return the widest network that contains all `chosen` addresses (of one IP version) and none of `others`; "" if
    there is no such network. "" also if `others` has no address of that IP version. A launcher may give the variable of
    one pod to all pods of a job, so the network is as wide as possible."""
    first = chosen[0]
    unwanted = [address for address in others if address.version == first.version]
    if not unwanted:
        return ""
    for length in range(first.max_prefixlen + 1):
        network = ip_network((first.packed, length), strict=False)
        if not all(address in network for address in chosen):
            return ""
        if not any(address in network for address in unwanted):
            return str(network)
    return ""

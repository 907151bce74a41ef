"""Reads this node for commands: hardware from sysfs, netdevs from the current network namespace. Needs no root.

The daemon reads the host's links through a namespace that it holds open, which needs privileges; a command reads only
the namespace that it runs in. The sysfs root in the settings may be a copy of another node's sysfs tree. Netdevs that
only the tree has are shown as the tree describes them. A netdev that neither the host nor the tree has must be in
another network namespace.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nri_rdma.config.settings import Settings
from nri_rdma.decide.inventory import assemble
from nri_rdma.host.cgroup import has_rdma_controller
from nri_rdma.host.sysfs.scan import is_own, scan
from nri_rdma.model.device import Node
from nri_rdma.model.link import LinkState
from nri_rdma.model.nldev import RdmaNetdevs, RdmaObject
from nri_rdma.model.usage import HostUse, Lifelines

_IFF_UP = 0x1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """The node that a command shows. `described` are the netdevs that this host does not have, and that are known only
    from the sysfs tree. `elsewhere` are the netdevs in another network namespace."""

    node: Node
    described: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    problem: str = ""
    """Why the host's links could not be read; "" if they were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostLinks:
    use: HostUse = field(default_factory=HostUse)
    rdma: tuple[RdmaNetdevs, ...] | None = None
    holders: Mapping[int, tuple[RdmaObject, ...]] = field(default_factory=dict)
    problem: str = ""


def read_node(settings: Settings, snapshot: Path | None = None) -> tuple[Node, tuple[str, ...]]:
    """Return the node of this machine or of the snapshot, and sentences to print beside it, which say what is missing,
    doubtful or old.

    Raises InventoryError if the machine has no sysfs. For a snapshot, raises OSError if it cannot be read, and
    SettingError if it contains no node.
    """
    if snapshot is None:
        local = read_local_node(settings)
        return local.node, notes(local, settings)
    from nri_rdma.commands.common.node_file import read_document

    node, sentences = read_document(snapshot)
    return node, (f"Read from the snapshot {snapshot}.", *sentences)


def read_local_node(settings: Settings) -> LocalNode:
    """Return the current node, read below the root folders of the settings. Raises InventoryError if there is no
    sysfs."""
    found = scan(settings.sysfs_root, settings.dev_root, settings.proc_root)
    names = tuple(name for of_device in found.netdev_names.values() for name in of_device)
    host = _host_links(settings.lifelines(os.environ), names) if names else _HostLinks()
    described = _only_described(settings.sysfs_root / "class/net", names, host.use.links)
    use = _side_by_side(host.use, described)
    present = {link.name for link in use.links}
    rdma_cgroup = has_rdma_controller(settings.cgroup_root)
    return LocalNode(
        node=assemble(
            found, use, host.rdma, host.holders, rdma_cgroup=rdma_cgroup, is_own_tree=is_own(settings.sysfs_root)
        ),
        described=tuple(link.name for link in described),
        elsewhere=tuple(name for name in names if name not in present),
        problem=host.problem,
    )


def notes(local: LocalNode, settings: Settings) -> tuple[str, ...]:
    """Return sentences that tell the user which facts about the node are missing or doubtful."""
    sentences: list[str] = []
    if local.problem:
        sentences.append(f"The host's links cannot be read ({local.problem}): use by the host is not known.")
    if local.described:
        sentences.append(
            f"This host does not have {_and(local.described)}: shown as {settings.sysfs_root} describes"
            f" {'it' if len(local.described) == 1 else 'them'}. A daemon here would not find"
            f" {'it' if len(local.described) == 1 else 'them'}."
        )
    if local.elsewhere:
        sentences.append(f"Not on the host, so in another network namespace: {_and(local.elsewhere)}.")
    return tuple(sentences)


def _host_links(lifelines: Lifelines, netdevs: Collection[str]) -> _HostLinks:
    from nri_rdma.attach.port import KernelError
    from nri_rdma.host.netlink.hostuse import HostReader
    from nri_rdma.host.netlink.rdma.holders import read_holders
    from nri_rdma.host.netlink.rdma.subsystem import RdmaSocket, read_netdevs
    from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
    from nri_rdma.wire import WireError

    try:
        with RouteSocket() as route, RdmaSocket() as sock:
            use = HostReader(lifelines).read(route, netdevs)
            rdma, holders = read_netdevs(sock), read_holders(sock)
    except (OSError, WireError, KernelError) as error:
        return _HostLinks(problem=str(error))
    return _HostLinks(use=use, rdma=rdma, holders=holders)


def _only_described(class_net: Path, names: Iterable[str], links: Collection[LinkState]) -> tuple[LinkState, ...]:
    """Return the links that the sysfs tree describes and the host does not have. A host link whose ifindex or MAC
    differs counts as another link, even if its name is equal."""
    on_host = {(link.name, link.ifindex, link.mac) for link in links}
    told = (_described_link(class_net / name) for name in names)
    return tuple(link for link in told if link is not None and (link.name, link.ifindex, link.mac) not in on_host)


def _described_link(folder: Path) -> LinkState | None:
    try:
        return LinkState(
            ifindex=int((folder / "ifindex").read_text()),
            name=folder.name,
            kind="",
            parent="",
            permanent_mac="",
            mac=(folder / "address").read_text().strip(),
            mtu=int((folder / "mtu").read_text()),
            txqlen=0,
            alias="",
            alt_names=(),
            up=bool(int((folder / "flags").read_text(), 16) & _IFF_UP),
            master=_ifindex_of(folder / "master"),
        )
    except (OSError, ValueError):
        return None  # the netdev is in another namespace, or the folder is not a sysfs tree


def _ifindex_of(folder: Path) -> int:
    try:
        return int((folder / "ifindex").read_text())
    except (OSError, ValueError):
        return 0  # no master


def _side_by_side(use: HostUse, described: tuple[LinkState, ...]) -> HostUse:
    """Return the host's links together with `described`, the links that only the sysfs tree has (a copy of another
    machine's tree).

    If links of the host and of the tree have one name or one ifindex, the host's link is left out, with its routes,
    addresses and sockets.
    """
    names, numbers = {link.name for link in described}, {link.ifindex for link in described}
    kept = tuple(link for link in use.links if link.name not in names and link.ifindex not in numbers)
    return replace(
        use,
        links=(*described, *kept),
        default_route_links=use.default_route_links - numbers,
        routing=replace(use.routing, routes={it: own for it, own in use.routing.routes.items() if it not in numbers}),
        addresses={ifindex: own for ifindex, own in use.addresses.items() if ifindex not in numbers},
        sockets=tuple(item for item in use.sockets if item.ifindex not in numbers),
        api_server_links=use.api_server_links - numbers,
    )


def _and(words: tuple[str, ...]) -> str:
    return ", ".join(words)

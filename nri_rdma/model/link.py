"""Links as the kernel reports them, with everything that a move loses or a pod can change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from nri_rdma.model.ip_words import ip_words

STABLE_SECRET: Final = "ipv6/conf/stable_secret"
"""The key in LinkState.sysctls of the secret for stable IPv6 addresses. It is missing if no secret is set. Setting it
also sets addr_gen_mode to 2 (stable-privacy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """An address, a route, a neighbour, a queueing discipline or a forwarding entry, as the kernel reported it.

    `raw` is the kernel's netlink message with all attributes, even unknown ones; sending it again restores the object.
    `text` has the object's identity and all known attributes. Two objects are equal if their texts are equal.
    """

    text: str
    raw: bytes
    kernel_made: bool
    """Whether the kernel adds the object by itself, perhaps late (IPv6 link-local addresses). Such an object is
    restored if it is missing, but never removed."""

    @property
    def words(self) -> str:
        """The text as iproute2 would write it, for people."""
        return ip_words(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """A link with everything that a move loses or a pod can change.

    `parent` is its bus device (``pci/0000:11:00.0``), "" for a virtual link. `permanent_mac` is "" if it has none.
    `master` is the ifindex of the link that this link is enslaved to, `lower` that of the link of which this link is a
    child. Both are in the link's namespace; 0 if there is none.
    """

    ifindex: int
    name: str
    kind: str
    parent: str
    permanent_mac: str
    mac: str
    mtu: int
    txqlen: int
    alias: str
    alt_names: tuple[str, ...]
    up: bool
    master: int = 0
    lower: int = 0
    xdp: bool = False
    addresses: tuple[Captured, ...] = ()
    routes: tuple[Captured, ...] = ()
    neighbours: tuple[Captured, ...] = ()
    """The permanent neighbours. Other neighbours are learned by the kernel, which learns them again."""
    queues: tuple[Captured, ...] = ()
    """The queueing disciplines and classes that were configured (not the kernel's default ones), parents first."""
    forwarding: tuple[Captured, ...] = ()
    """The hardware addresses that were configured for the link to receive."""
    settings: tuple[tuple[str, int], ...] = ()
    """Numbers by name (flags, group, GSO and GRO sizes, addr_gen_mode), as far as this kernel has them."""
    sysctls: str = ""
    """The link's own settings under /proc/sys/net, for its address families: lines like ``ipv4/conf/rp_filter 1``. It
    is one text because a daemon may read thousands of journal records at its start. Only `Kernel.capture` reads it; ""
    in journals of older daemons."""
    features: str = ""
    """The changeable features, as ``ethtool -k`` names them, with their wanted values: lines like ``tx-tcp-segmentation
    on``. Only `Kernel.capture` reads it; "" if the driver has none, and in journals of older daemons."""
    fixed_features: str = ""
    """The features that cannot be changed, with their actual values: lines like those of `features`. "" in a
    journal."""
    tuning: str = ""
    """The sizes of rings, channels and coalescing, as ethtool names them: lines like ``ring rx 1024``. Only
    `Kernel.capture` reads it; "" if the driver has none, and in journals of older daemons."""
    max_mtu: int = 0
    """The greatest MTU that the driver accepts; 0 if the kernel does not report it, and in a journal."""
    private_flags: str = ""
    """The private flags of the driver: lines like ``rx_cqe_moder on``. Only `Kernel.capture` reads it; "" if the driver
    has none, and in journals of older daemons."""
    dcb: str = ""
    """The data center bridging settings that the driver reports: lines like ``pfc enabled 0x08``. Changes are reported,
    but the daemon never sets them."""
    tcx: tuple[int, ...] | None = None
    """The ids of the eBPF programs attached by TCX, which stay on a link in all namespaces. Only `Kernel.capture` reads
    it; None if they cannot be listed, and in journals of older daemons."""
    peer: int = 0
    """The ifindex of a virtual link's counterpart: a veth's other end, a child's lower link. 0 if there is none, and in
    journals of older daemons."""
    peer_netns: int = -1
    """The number by which the link's namespace knows the namespace of `peer`; -1 if both links are in one namespace."""
    unreturnable: tuple[str, ...] = ()
    """The reasons why the host could not be restored if the link moved away: something depends on the link. A link with
    any reason is not moved into a pod."""


def sysctls_text(values: Mapping[str, str]) -> str:
    """Return the text of LinkState.sysctls for these values by name."""
    return "\n".join(f"{name} {value}" for name, value in values.items())


def tuning_of(text: str) -> dict[str, int]:
    """Parse LinkState.tuning; return the sizes by name."""
    lines = (line.rpartition(" ") for line in text.splitlines())
    return {name: int(value) for name, _, value in lines}


def features_text(features: Iterable[tuple[str, bool]]) -> str:
    """Return the text of LinkState.features or LinkState.private_flags for these pairs."""
    return "\n".join(f"{name} {'on' if on else 'off'}" for name, on in features)


@lru_cache(64)
def features_of(text: str) -> Mapping[str, bool]:
    """Parse LinkState.features or LinkState.private_flags; return the values by name. Names of private flags may have
    spaces."""
    lines = (line.rpartition(" ") for line in text.splitlines())
    return MappingProxyType({name: value == "on" for name, _, value in lines})


def sysctls_of(text: str) -> dict[str, str]:
    """Parse LinkState.sysctls; return the values by name."""
    lines = (line.partition(" ") for line in text.splitlines())
    return {name: value for name, _, value in lines}

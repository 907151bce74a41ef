"""Links as the kernel reports them: with everything that a move loses or a pod can change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from nri_rdma.model.ip_words import ip_words

STABLE_SECRET: Final = "ipv6/conf/stable_secret"
"""The key of LinkState.sysctls that is not always there, and that has a side effect: setting it sets addr_gen_mode to 2
(stable-privacy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """An address, a route or a neighbour as the kernel reported it: as text, and whole for its restoration.

    `raw` is the kernel's netlink message with all attributes, known to us or not; sent again it restores the thing.
    Two are the same when their `text` is, which holds what identifies them and every attribute that we know.
    """

    text: str
    raw: bytes
    kernel_made: bool
    """Whether the kernel makes it by itself, perhaps late (IPv6 link-local): restored when missing, never removed."""

    @property
    def words(self) -> str:
        """The text as iproute2 would write it."""
        return ip_words(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """A netdev with everything that a move loses or a pod can change.

    `parent` is its bus device (``pci/0000:11:00.0``), "" when virtual; `permanent_mac` is "" when it has none; `master`
    and `lower` are the ifindex of what it is enslaved to and of what it is a child of, in the same namespace, or 0.
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
    """The permanent neighbours; the kernel learns the others again."""
    queues: tuple[Captured, ...] = ()
    """The queueing disciplines and classes that somebody has made, parents first."""
    forwarding: tuple[Captured, ...] = ()
    """The hardware addresses that somebody had the link listen to."""
    settings: tuple[tuple[str, int], ...] = ()
    """Numbers by name (flags, group, GSO and GRO sizes, addr_gen_mode): those that this kernel has."""
    sysctls: str = ""
    """The link's own settings under /proc/sys/net, of the address families that it has: lines like
    ``ipv4/conf/rp_filter 1``. One text, because thousands of journals are read at the start. Only of a captured link;
    "" in the journal of a daemon that did not record them."""
    features: str = ""
    """The features that can be changed, as ``ethtool -k`` names them: lines like ``tx-tcp-segmentation on``, by what is
    wanted. Only of a captured link; "" when its driver has none, and in the journal of a daemon that did not record
    them."""
    fixed_features: str = ""
    """Those that cannot be changed, by what they are; "" in a journal. As `features` otherwise."""
    tuning: str = ""
    """Sizes of rings, channels and coalescing, as ethtool names them: lines like ``ring rx 1024``. As `features`
    otherwise."""
    max_mtu: int = 0
    """The most that the link's driver takes; 0 when the kernel does not report it, and in a journal."""
    private_flags: str = ""
    """The private flags of the link's driver: lines like ``rx_cqe_moder on``. As `features` otherwise."""
    dcb: str = ""
    """Data center bridging, where the driver tells it: lines like ``pfc enabled 0x08``. It is compared and reported,
    and never set."""
    tcx: tuple[int, ...] | None = None
    """The ids of the eBPF programs that TCX has attached: they follow a link through all namespaces. Only of a captured
    link; None where they cannot be listed, and in the journal of a daemon that did not record them."""
    peer: int = 0
    """The ifindex of what a virtual link hangs on: a veth's other end, the lower link of a child. 0 when there is none,
    and in the journal of a daemon that did not record it."""
    peer_netns: int = -1
    """The number by which the link's namespace knows the namespace of `peer`; -1: it is the same one."""
    unreturnable: tuple[str, ...] = ()
    """What on the host depends on this link and could not be restored: such a link is not given away."""


def sysctls_text(values: Mapping[str, str]) -> str:
    """Return LinkState.sysctls of values by name."""
    return "\n".join(f"{name} {value}" for name, value in values.items())


def tuning_of(text: str) -> dict[str, int]:
    """Return the sizes by name of LinkState.tuning."""
    lines = (line.rpartition(" ") for line in text.splitlines())
    return {name: int(value) for name, _, value in lines}


def features_text(features: Iterable[tuple[str, bool]]) -> str:
    """Return LinkState.features, or .private_flags, of those by name."""
    return "\n".join(f"{name} {'on' if on else 'off'}" for name, on in features)


@lru_cache(64)
def features_of(text: str) -> Mapping[str, bool]:
    """Return the features by name of LinkState.features, or the flags of .private_flags: those have spaces."""
    lines = (line.rpartition(" ") for line in text.splitlines())
    return MappingProxyType({name: value == "on" for name, _, value in lines})


def sysctls_of(text: str) -> dict[str, str]:
    """Return the values by name of LinkState.sysctls."""
    lines = (line.partition(" ") for line in text.splitlines())
    return {name: value for name, _, value in lines}

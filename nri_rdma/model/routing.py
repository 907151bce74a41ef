"""How a network namespace routes, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface
from typing import Final, TypeAlias

from nri_rdma.model.network import MAIN_TABLE, RouteConfig, RoutingRule

IpInterface: TypeAlias = IPv4Interface | IPv6Interface

DEFAULT_TABLE: Final = 253
LOCAL_TABLE: Final = 255
SHARED_TABLES: Final = frozenset({DEFAULT_TABLE, MAIN_TABLE, LOCAL_TABLE})
"""Every packet comes to these tables, by the kernel's own rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRule:
    """A rule that a namespace has. `foreign` is "" for one that `rule` says whole, else what it does not say: such a
    rule cannot be copied."""

    rule: RoutingRule
    foreign: str = ""

    def __str__(self) -> str:
        return f"{self.rule} ({self.foreign})" if self.foreign else str(self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The routing of a network namespace: its rules, and by ifindex the addresses and the routes of its links (but not
    those of the table `local`)."""

    rules: tuple[KnownRule, ...] = ()
    addresses: Mapping[int, tuple[IpInterface, ...]] = field(default_factory=dict)
    routes: Mapping[int, tuple[RouteConfig, ...]] = field(default_factory=dict)
    has_ipv6: bool = True
    """Whether a link that arrives may have IPv6 addresses (net.ipv6.conf.default.disable_ipv6)."""
    netdevs: frozenset[int] = frozenset()
    """The links that are netdevs of the pod's earlier attaches: no part of its cluster network."""

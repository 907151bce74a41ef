"""The routing of a network namespace, as values."""

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
"""The tables that the kernel's default rules look up for every packet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRule:
    """A routing rule of a namespace. `foreign` lists the attributes of the kernel's rule that RoutingRule cannot
    express; "" if there are none. A rule with such attributes cannot be copied."""

    rule: RoutingRule
    foreign: str = ""

    def __str__(self) -> str:
        return f"{self.rule} ({self.foreign})" if self.foreign else str(self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The routing of a network namespace: its rules, and the addresses and routes of its links by ifindex. Routes in
    the table `local` are left out."""

    rules: tuple[KnownRule, ...] = ()
    addresses: Mapping[int, tuple[IpInterface, ...]] = field(default_factory=dict)
    routes: Mapping[int, tuple[RouteConfig, ...]] = field(default_factory=dict)
    has_ipv6: bool = True
    """Whether a new link in the namespace may have IPv6 addresses (net.ipv6.conf.default.disable_ipv6)."""
    netdevs: frozenset[int] = frozenset()
    """The links that earlier attaches moved into the pod. They are not part of its cluster network."""

"""What attach needs of the kernel.

The real one is nri_rdma.host.netlink.kernel; the fake one (tests/fakes) keeps state and can fail at its n-th operation.
Both pass tests/contract. Every operation raises KernelError with the kernel's errno, and nothing else.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface
from typing import Protocol

from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.link import Captured, LinkState
from nri_rdma.model.nldev import CharNumber, RdmaDeviceState, RdmaObject, RdmaPortState
from nri_rdma.model.usage import HostUse


class KernelError(Exception):
    """The kernel said no."""

    def __init__(self, operation: str, error: int, detail: str = "") -> None:
        self.operation = operation
        self.errno = error
        self.detail = detail
        name = errno.errorcode.get(error, str(error))
        super().__init__(f"{operation}: {name}" + (f" ({detail})" if detail else ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceIdentity:
    """Which network namespace this is. Inode numbers repeat and paths are used again; the cookie is unique per boot."""

    boot_id: str
    cookie: int
    path: str


class Namespace(Protocol):
    """A network namespace that is held open, and so kept alive with everything in it. Close it as soon as possible."""

    @property
    def identity(self) -> NamespaceIdentity: ...

    @property
    def is_host(self) -> bool: ...

    def rest(self) -> None:
        """Keep it open at the least cost: nothing will be asked for long."""
        ...

    def close(self) -> None:
        """Let it go. A call that is inside still ends as it would have; the namespace goes with its return."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What refuses an attach, of the host at one time: how it uses some links, and these themselves by ifindex, without
    what they carry. `use.sockets` is empty where they were not asked for."""

    use: HostUse
    links: Mapping[int, LinkState]


class Kernel(Protocol):
    """Links and RDMA devices of the host and of namespaces. All calls block."""

    @property
    def host(self) -> Namespace: ...

    def open_namespace(self, path: str, *, entered: bool = True) -> Namespace:
        """The namespace at a path. Not `entered`: without waiting until it can be worked in; that it cannot be then
        comes with its first use."""
        ...

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]:
        """Return all links without their addresses and routes; those that the kernel describes illegibly are left
        out."""
        ...

    def link(self, namespace: Namespace, ifindex: int) -> LinkState | None:
        """Return one of these links, or None when the namespace has none of that number. EPROTO: what the kernel says
        of it cannot be read."""
        ...

    def host_use(self, netdevs: Collection[str] = ()) -> HostUse:
        """The host's links, and what goes through them; what could not be given back is told of the links that are
        called like this."""
        ...

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey:
        """How the host uses these links: `use.links` are they, and those that are tied to them (masters, slaves,
        children). Of `ifindexes` those that are not there are left out. The sandbox waits for this, but not for its
        `sockets`: to find them the kernel walks through all that the machine has room for."""
        ...

    def capture_all(self, ifindexes: Collection[int]) -> Mapping[int, LinkState]:
        """`capture` of several of the host's links: the table of routes, which may be long, is read once. Those that
        are not there are left out."""
        ...

    def capture(self, namespace: Namespace, ifindex: int) -> LinkState:
        """One link with its addresses, routes, neighbours and sysctls. What keeps it from being given away
        (`unreturnable`) `capture_all` tells: other links' routes are not read here."""
        ...

    def move_link(self, source: Namespace, ifindex: int, target: Namespace, name: str, *, as_ifindex: int = 0) -> None:
        """Move, rename and renumber in one request; without `as_ifindex` the kernel chooses.

        EBUSY: the number is taken there; EEXIST: an alternative name of the link is, or the name. Linux refuses a name
        only after the move, so that the link may be there then, under its old name.
        """
        ...

    def configure(
        self,
        namespace: Namespace,
        ifindex: int,
        *,
        mtu: int | None,
        addresses: Collection[IPv4Interface | IPv6Interface],
    ) -> None:
        """Set the MTU, add the addresses, raise the link: in this order, and all of it even when some is refused. The
        error is the first one's."""
        ...

    def set_link(
        self,
        namespace: Namespace,
        ifindex: int,
        *,
        name: str | None = None,
        mtu: int | None = None,
        mac: str | None = None,
        txqlen: int | None = None,
        alias: str | None = None,
        up: bool | None = None,
    ) -> None: ...

    def set_settings(self, namespace: Namespace, ifindex: int, settings: tuple[tuple[str, int], ...]) -> None:
        """Set numbers of LinkState.settings, in one request."""
        ...

    def set_sysctls(self, namespace: Namespace, ifindex: int, sysctls: tuple[tuple[str, str], ...]) -> None:
        """Set some of LinkState.sysctls; the secret of stable addresses changes addr_gen_mode, too. All of them are
        tried, the error is the first one's."""
        ...

    def detach_xdp(self, namespace: Namespace, ifindex: int) -> None:
        """Detach every XDP program; none is no error. EBUSY: one belongs to a bpf_link, and goes with its process."""
        ...

    def set_alt_names(
        self, namespace: Namespace, ifindex: int, *, add: tuple[str, ...], remove: tuple[str, ...]
    ) -> None: ...

    def add_address(self, namespace: Namespace, ifindex: int, address: IPv4Interface | IPv6Interface) -> None: ...

    def replay(self, namespace: Namespace, ifindex: int, thing: Captured) -> None:
        """Restore a captured thing on the link that now has that ifindex; one that exists is no error."""
        ...

    def remove(self, namespace: Namespace, ifindex: int, thing: Captured) -> None:
        """Remove a captured thing; one that does not exist is no error."""
        ...

    def rdma_netns(self) -> RdmaNetns:
        """Whether namespaces share the RDMA devices, or the kernel has none."""
        ...

    def rdma_devices(self, namespace: Namespace) -> tuple[RdmaDeviceState, ...]:
        """The RDMA devices that a namespace has; with `shared` all of the machine, with `none` no one."""
        ...

    def rdma_ports(self, namespace: Namespace, index: int) -> tuple[RdmaPortState, ...]:
        """The ports of an RDMA device that the namespace sees, each with its netdev if that is in the namespace."""
        ...

    def rdma_objects(self, index: int) -> tuple[RdmaObject, ...]:
        """What is held on an RDMA device of the host: the contexts of processes, and the queue pairs, ids and regions
        of the kernel's own users. EINVAL: the host does not have it."""
        ...

    def can_move_rdma(self, index: int, target: Namespace) -> bool:
        """Whether the kernel would move an RDMA device of the host there; asking changes nothing.

        EINVAL: the target is the host itself.
        """
        ...

    def move_rdma(self, source: Namespace, index: int, target: Namespace) -> None:
        """Move an RDMA device. Its character devices get new names and numbers; whoever has it open loses it.

        EOPNOTSUPP: its driver cannot, or the netns mode is shared. EINVAL: the source does not have it.
        """
        ...

    def rename_rdma(self, namespace: Namespace, index: int, name: str) -> None:
        """Rename an RDMA device. EEXIST: another one of the machine has that name."""
        ...

    def char_device(
        self, namespace: Namespace, index: int | None, kind: CharKind, port: int | None
    ) -> CharNumber | None:
        """A character device of an RDMA device that the namespace has; None: it has none of that kind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process of this boot; `start` is when it began, in ticks since the boot."""

    pid: int
    start: int


class Processes(Protocol):
    """Processes told apart and watched."""

    def watch(self, pid: int) -> ProcessIdentity:
        """Watch a process. Raises ProcessLookupError when there is none, OSError when it cannot be watched."""
        ...

    def watch_again(self, process: ProcessIdentity) -> None:
        """Watch one that is known; another of its number is not it. Raises as `watch`."""
        ...

"""The interface to the kernel that attaches use.

nri_rdma.host.netlink.linux_kernel implements it for real. A fake (tests/fakes) keeps state and can fail at its n-th
operation. Both pass tests/contract. Every call raises KernelError with the kernel's errno, and nothing else; `apply`
returns the errors instead.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from nri_rdma.attach.ops import Op
from nri_rdma.errors import AttachError, ErrorCode
from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.gid import Gid
from nri_rdma.model.link import LinkState
from nri_rdma.model.nldev import CharNumber, RdmaDeviceState, RdmaObject, RdmaPortState
from nri_rdma.model.routing import KnownRule, Routing
from nri_rdma.model.usage import HostUse

_UNSEEN = frozenset({errno.EINVAL, errno.ENOENT, errno.ENOTDIR})
"""The errors of opening a path that shows no network namespace here. EINVAL: the path is an ordinary file, since the
namespace is mounted on it elsewhere. The others: the folder itself is not mounted here."""


class KernelError(Exception):
    """A system call or netlink request that the kernel refused; `errno` is its answer."""

    def __init__(self, operation: str, error: int, detail: str = "") -> None:
        self.operation = operation
        self.errno = error
        self.detail = detail
        name = errno.errorcode.get(error, str(error))
        super().__init__(f"{operation}: {name}" + (f" ({detail})" if detail else ""))


class NamespaceError(KernelError):
    """A network namespace cannot be opened or entered."""


def explained(error: KernelError, *, device: str, where: str, path: str = "", what: str = "") -> AttachError:
    """Return a kernel error as an AttachError with a hint. `path` is that of the pod's network namespace; `what` names
    the refused step."""
    words, code = str(error), ErrorCode.ATTACH_FAILED
    if _is_of_powerless(error):
        words, code = f"the daemon lacks CAP_SYS_ADMIN: {words}", ErrorCode.PRIVILEGE
    return AttachError(
        f"{what}: {words}" if what else words,
        device=device,
        where=where,
        hint=_next_step(error, path),
        errno=error.errno,
        code=code,
    )


def add_capability(name: str) -> str:
    """Return the hint that says how to give the daemon a capability."""
    return f"add {name} to securityContext.capabilities of the daemon's container, or CAP_{name} to its unit"


def _is_of_powerless(error: KernelError) -> bool:
    """Return whether entering a namespace was refused because the process lacks CAP_SYS_ADMIN."""
    return isinstance(error, NamespaceError) and error.errno == errno.EPERM


_REFUSALS = {
    ("add route", errno.EEXIST): "the pod has a route to that network: write another metric or table, or leave it out",
    ("add route", errno.ENETUNREACH): "write an address whose network has the gateway, or onlink: true",
    ("add route", errno.EINVAL): "write one of the netdev's addresses as source, or leave source out",
    ("add IPv4 rule", errno.EEXIST): "the pod has that rule: leave it out, or write another priority",
    ("add IPv6 rule", errno.EEXIST): "the pod has that rule: leave it out, or write another priority",
    ("join VRF", errno.EEXIST): "write another name, or the table that the pod's VRF of that name has",
    ("make VRF", errno.EOPNOTSUPP): "load the module vrf on the node, or leave interface.vrf out",
}
"""The hints for errors whose cause is the request: by the start of the operation's name, and the errno."""


def _next_step(error: KernelError, path: str) -> str:
    for (operation, number), step in _REFUSALS.items():
        if error.operation.startswith(operation) and error.errno == number:
            return step
    if error.errno == errno.ENOPKG:
        return "see what `nri-rdma doctor` says of packages, and install nri-rdma again"
    if _is_of_powerless(error):
        return add_capability("SYS_ADMIN")
    if error.errno in {errno.EPERM, errno.EACCES}:
        return "give the daemon CAP_SYS_ADMIN and CAP_NET_ADMIN, and see the log of the kernel (dmesg)"
    if not isinstance(error, NamespaceError) or error.errno not in _UNSEEN or not path:
        return "the kubelet tries again; if it stays so see the daemon's log and that of the kernel (dmesg)"
    folder = PurePosixPath(path).parent
    mend = f"mount {folder} into it with mountPropagation: HostToContainer"
    if folder.is_relative_to("/proc"):
        mend = "give it the host's PID namespace (hostPID: true)"
    return f"if the daemon runs in a container, {mend}; otherwise the pod has ended, and the kubelet makes a new one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An operation that the kernel refused, and its error."""

    op: Op
    error: KernelError


def raise_first(refused: Sequence[Refused]) -> None:
    """Raise the error of the first refused operation, if there is one."""
    if refused:
        raise refused[0].error


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceIdentity:
    """The identity of a network namespace. Only the cookie is unique within a boot: inode numbers and paths are
    reused."""

    boot_id: str
    cookie: int
    path: str


class Namespace(Protocol):
    """An open network namespace. Until it is closed, the namespace stays alive with everything in it, so close it as
    soon as possible."""

    @property
    def identity(self) -> NamespaceIdentity: ...

    @property
    def is_host(self) -> bool: ...

    @property
    def is_at_its_path(self) -> bool:
        """Return whether its path still leads to this namespace; if not, the pod has ended. Raises KernelError if the
        namespace is closed."""
        ...

    def keeping(self) -> AbstractContextManager[None]:
        """Keep the daemon's sockets in the namespace open inside the `with` block. If they were closed, moving a link
        would wait until the kernel has freed them."""
        ...

    def rest(self) -> None:
        """Close the sockets in the namespace, but keep the namespace open. Called when the namespace is not needed for
        a long time."""
        ...

    def close(self) -> None:
        """Close the namespace. A call that is running ends normally; the namespace is released when that call
        returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The host's use of some links at one moment (`use`), and the state of these links by ifindex (`links`). It
    suffices to refuse an attach, but lacks addresses, routes and neighbours. `use.sockets` is empty unless sockets were
    requested."""

    use: HostUse
    links: Mapping[int, LinkState]


class Kernel(Protocol):
    """Links and RDMA devices of the host and of namespaces. All calls block."""

    @property
    def host(self) -> Namespace: ...

    def open_namespace(self, path: str) -> Namespace:
        """Open the network namespace at a path."""
        ...

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]:
        """Return all links, without their addresses and routes. A link whose description by the kernel cannot be parsed
        is left out."""
        ...

    def link(self, namespace: Namespace, ifindex: int) -> LinkState | None:
        """Return the link with this number, or None if the namespace has none. EPROTO: the kernel's description of the
        link cannot be parsed."""
        ...

    def hangs_on(self, namespace: Namespace, ifindex: int, link: LinkState) -> bool:
        """Return whether the virtual link `ifindex` still has the counterpart that `link` had on the host: the other
        end of a veth, or the lower link of a child. True if `link` had no counterpart. ENODEV: the link does not
        exist."""
        ...

    def has_bus_device(self, parent: str) -> bool:
        """Return whether the machine has this device of a bus, for example ``pci/0000:11:00.0``. A removed device (a VF
        after a write to `sriov_numvfs`, say) has no netdev anywhere."""
        ...

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey:
        """Return how the host uses these links. `use.links` has them and the links tied to them (masters, slaves,
        children); missing links are left out. Only `sockets` makes the call slow: the kernel then searches its whole
        socket table."""
        ...

    def capture(
        self, namespace: Namespace, ifindexes: Collection[int], *, unreturnable: bool = False
    ) -> Mapping[int, LinkState]:
        """Return these links with their addresses, routes, neighbours and sysctls. Links that do not exist are left
        out.

        With `unreturnable`, also determine LinkState.unreturnable: what on the host depends on a link and could not be
        restored. This reads the routes of all links once, which may be many.
        """
        ...

    def rules(self, namespace: Namespace) -> tuple[KnownRule, ...]:
        """Return the IPv4 and IPv6 routing rules of the namespace."""
        ...

    def routing(self, namespace: Namespace) -> Routing:
        """Return the routing of a pod's namespace. Do not call it for the host, which may have hundreds of thousands of
        routes."""
        ...

    def may_change_links(self) -> bool:
        """Return whether this process may change the host's links (CAP_NET_ADMIN). The check changes nothing."""
        ...

    def move_link(self, source: Namespace, ifindex: int, target: Namespace, name: str, *, as_ifindex: int = 0) -> None:
        """Move a link to another namespace, rename it and give it the number `as_ifindex`, in one request. With 0 the
        kernel chooses the number.

        EBUSY: the number is taken in the target. EEXIST: the name or an alternative name of the link is taken there.
        Linux checks the name after the move, so on EEXIST the link may be in the target under its old name.
        """
        ...

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        """Try all operations in order, on the link (or, for RDMA operations, the RDMA device) with this number in the
        namespace. Return the refused ones; never raises KernelError.

        Consecutive operations that use one kernel interface are sent together.
        """
        ...

    def rdma_netns(self) -> RdmaNetns:
        """Return the RDMA netns mode: network namespaces share the RDMA devices, each RDMA device is in one namespace,
        or the kernel has no RDMA subsystem."""
        ...

    def rdma_devices(self, namespace: Namespace) -> tuple[RdmaDeviceState, ...]:
        """Return the RDMA devices that the namespace sees. In netns mode `shared` these are all of the machine; without
        an RDMA subsystem there are none."""
        ...

    def rdma_ports(self, namespace: Namespace, index: int) -> tuple[RdmaPortState, ...]:
        """Return the ports of an RDMA device that the namespace sees. A port names its netdev only if the netdev is in
        this namespace."""
        ...

    def gid_tables(
        self, namespace: Namespace, ports: Collection[tuple[str, int]], gap: int
    ) -> Mapping[tuple[str, int], tuple[Gid, ...]]:
        """Return the used GIDs of each port in `ports`, which are pairs of device name and port number. The namespace
        must see the devices. A table is read until `gap` consecutive entries are unused; an unreadable table is left
        out."""
        ...

    def rdma_objects(self, index: int) -> tuple[RdmaObject, ...]:
        """Return the objects on an RDMA device of the host: the contexts of processes, and the queue pairs, connection
        ids and memory regions of kernel users. EINVAL: the host does not have this device."""
        ...

    def can_move_rdma(self, index: int, target: Namespace) -> bool:
        """Return whether the kernel would move an RDMA device of the host to the target. The check changes nothing.

        EINVAL: the target is the host itself.
        """
        ...

    def move_rdma(self, source: Namespace, index: int, target: Namespace) -> None:
        """Move an RDMA device to another namespace. Its character devices get new names and numbers, and processes lose
        those that they have open.

        EOPNOTSUPP: the driver cannot move it, or the netns mode is shared. EINVAL: the device is not in the source
        namespace.
        """
        ...

    def char_device(
        self, namespace: Namespace, index: int | None, kind: CharKind, port: int | None
    ) -> CharNumber | None:
        """Return a character device of an RDMA device in the namespace, or None if there is none of this kind. `index`
        is the RDMA device's. `port` is None for kinds with one character device per RDMA device."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process of this boot; `start` is when it began, in ticks since the boot."""

    pid: int
    start: int


class Processes(Protocol):
    """Watches processes for their end, and recognises a reused PID."""

    def watch(self, pid: int) -> ProcessIdentity:
        """Watch a process. Raises ProcessLookupError if it does not exist, OSError if it cannot be watched."""
        ...

    def watch_again(self, process: ProcessIdentity) -> None:
        """Watch a known process. Raises ProcessLookupError if it has ended, even if another process has its PID now,
        and OSError if it cannot be watched."""
        ...

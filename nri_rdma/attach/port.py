"""What attach needs of the kernel.

The real one is nri_rdma.host.netlink.kernel; the fake one (tests/fakes) keeps state and can fail at its n-th operation.
Both pass tests/contract. Every call raises KernelError with the kernel's errno, and nothing else; `apply` returns the
errors.
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
"""What the kernel says of a path where no network namespace is: EINVAL where the empty file is that one is mounted on
elsewhere, the others where the folder is not mounted."""


class KernelError(Exception):
    """The kernel said no."""

    def __init__(self, operation: str, error: int, detail: str = "") -> None:
        self.operation = operation
        self.errno = error
        self.detail = detail
        name = errno.errorcode.get(error, str(error))
        super().__init__(f"{operation}: {name}" + (f" ({detail})" if detail else ""))


class NamespaceError(KernelError):
    """A network namespace cannot be opened or entered."""


def explained(error: KernelError, *, device: str, where: str, path: str = "", what: str = "") -> AttachError:
    """Return the kernel's error as one for people, with what to do. `path` is that of the pod's network namespace,
    `what` the step that was refused."""
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
    """Return how the daemon gets a capability."""
    return f"add {name} to securityContext.capabilities of the daemon's container, or CAP_{name} to its unit"


def _is_of_powerless(error: KernelError) -> bool:
    """Return whether setns was refused for want of rights."""
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
"""What to do where it is the request that the kernel refuses: by the beginning of the operation, and the errno."""


def _next_step(error: KernelError, path: str) -> str:
    for (operation, number), step in _REFUSALS.items():
        if error.operation.startswith(operation) and error.errno == number:
            return step
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
    """An operation that was not done, and why."""

    op: Op
    error: KernelError


def raise_first(refused: Sequence[Refused]) -> None:
    """Raise the error of the first operation that was refused, if any was."""
    if refused:
        raise refused[0].error


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceIdentity:
    """The identity of a network namespace. Inode numbers repeat and paths are used again; the cookie is unique per
    boot."""

    boot_id: str
    cookie: int
    path: str


class Namespace(Protocol):
    """A network namespace that is held open, and so kept alive with everything in it. Close it as soon as possible."""

    @property
    def identity(self) -> NamespaceIdentity: ...

    @property
    def is_host(self) -> bool: ...

    @property
    def is_at_its_path(self) -> bool:
        """Return whether its path still leads to it: if not, the pod has ended. Raises KernelError where it is
        closed."""
        ...

    def keeping(self) -> AbstractContextManager[None]:
        """Keep open meanwhile what is asked with: what is closed is freed later, and a link's move waits for it."""
        ...

    def rest(self) -> None:
        """Keep it open at the least cost: nothing will be asked for long."""
        ...

    def close(self) -> None:
        """Let it go. A call that is inside still ends as it would have; the namespace goes with its return."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Snapshot of the host's use of some links, with these links by ifindex: enough to refuse an attach. Their
    addresses, routes and neighbours are not included. `use.sockets` is empty unless sockets were requested."""

    use: HostUse
    links: Mapping[int, LinkState]


class Kernel(Protocol):
    """Links and RDMA devices of the host and of namespaces. All calls block."""

    @property
    def host(self) -> Namespace: ...

    def open_namespace(self, path: str) -> Namespace:
        """Open the namespace at a path."""
        ...

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]:
        """Return all links without their addresses and routes; those that the kernel describes illegibly are left
        out."""
        ...

    def link(self, namespace: Namespace, ifindex: int) -> LinkState | None:
        """Return one of these links, or None when the namespace has none of that number. EPROTO: what the kernel says
        of it cannot be read."""
        ...

    def hangs_on(self, namespace: Namespace, ifindex: int, link: LinkState) -> bool:
        """Return whether the virtual link `ifindex` of a namespace hangs on what `link`, as the host had it, hung on: a
        veth on its other end, a child on its lower link. True for what hangs on nothing. ENODEV: there is no such
        link."""
        ...

    def has_bus_device(self, parent: str) -> bool:
        """Return whether the machine has that device of a bus (``pci/0000:11:00.0``). One that was removed, as a VF is
        by `sriov_numvfs`, has no netdev anywhere."""
        ...

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey:
        """Return how the host uses these links. `use.links` has them and the links that are tied to them (masters,
        slaves, children); links that do not exist are left out. The start of a pod waits for this, but not with
        `sockets`: to find sockets the kernel walks through all that the machine has room for."""
        ...

    def capture(
        self, namespace: Namespace, ifindexes: Collection[int], *, unreturnable: bool = False
    ) -> Mapping[int, LinkState]:
        """Return these links with their addresses, routes, neighbours and sysctls; leave out those that are not there.

        `unreturnable`: with what keeps them from being given away, too. For that the routes of all links are read: they
        may be many, and are read once.
        """
        ...

    def rules(self, namespace: Namespace) -> tuple[KnownRule, ...]:
        """Return the rules of the routing policy, of IPv4 and IPv6."""
        ...

    def routing(self, namespace: Namespace) -> Routing:
        """Return how a pod's namespace routes. Not for the host, which may have routes by the hundred thousand."""
        ...

    def may_change_links(self) -> bool:
        """Return whether the kernel lets this process change the host's links (CAP_NET_ADMIN); asking changes
        nothing."""
        ...

    def move_link(self, source: Namespace, ifindex: int, target: Namespace, name: str, *, as_ifindex: int = 0) -> None:
        """Move, rename and renumber in one request; without `as_ifindex` the kernel chooses.

        EBUSY: the number is taken there; EEXIST: an alternative name of the link is, or the name. Linux refuses a name
        only after the move, so that the link may be there then, under its old name.
        """
        ...

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        """Try all operations in order, on the link (or, where they are for one, on the RDMA device) that has this
        number in the namespace. Return those that were refused; never raises KernelError.

        Operations in a row that go the same way to the kernel go there together.
        """
        ...

    def rdma_netns(self) -> RdmaNetns:
        """Return whether namespaces share the RDMA devices, or the kernel has none."""
        ...

    def rdma_devices(self, namespace: Namespace) -> tuple[RdmaDeviceState, ...]:
        """Return the RDMA devices that a namespace has; with `shared` all of the machine, with `none` no one."""
        ...

    def rdma_ports(self, namespace: Namespace, index: int) -> tuple[RdmaPortState, ...]:
        """Return the ports of an RDMA device that the namespace sees, each with its netdev if the namespace has it."""
        ...

    def gid_tables(
        self, namespace: Namespace, ports: Collection[tuple[str, int]], gap: int
    ) -> Mapping[tuple[str, int], tuple[Gid, ...]]:
        """Return the GIDs in use of these ports, given as device and port, of RDMA devices that the namespace sees. So
        many entries that are not in use end a table. Ports that show none are left out."""
        ...

    def rdma_objects(self, index: int) -> tuple[RdmaObject, ...]:
        """Return what is held on an RDMA device of the host: the contexts of processes, and the queue pairs, ids and
        regions of the kernel's own users. EINVAL: the host does not have it."""
        ...

    def can_move_rdma(self, index: int, target: Namespace) -> bool:
        """Return whether the kernel would move an RDMA device of the host there; asking changes nothing.

        EINVAL: the target is the host itself.
        """
        ...

    def move_rdma(self, source: Namespace, index: int, target: Namespace) -> None:
        """Move an RDMA device. Its character devices get new names and numbers; whoever has it open loses it.

        EOPNOTSUPP: its driver cannot, or the netns mode is shared. EINVAL: the source does not have it.
        """
        ...

    def char_device(
        self, namespace: Namespace, index: int | None, kind: CharKind, port: int | None
    ) -> CharNumber | None:
        """Return a character device of an RDMA device that the namespace has; None: it has none of that kind."""
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

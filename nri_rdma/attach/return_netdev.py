"""The return of a netdev to the host: find it wherever it is, move it, restore its configuration.

Every function checks the present state before it changes anything, so all of this can be repeated at any point. A pod
with NET_ADMIN may have changed its netdev at will: renamed it, changed its MAC and addresses, or given it names that
are taken on the host.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Final, TypeAlias

from nri_rdma.attach.ops import (
    AddAltName,
    DetachTcx,
    DetachXdp,
    DropAltName,
    Op,
    Remove,
    Restore,
    SetFeatures,
    SetLink,
    SetPrivateFlags,
    SetSettings,
    SetSysctl,
    SetTuning,
)
from nri_rdma.attach.plan import NetdevMove
from nri_rdma.attach.port import Kernel, KernelError, Namespace, Refused, raise_first
from nri_rdma.model.link import STABLE_SECRET, Captured, LinkState, features_of, sysctls_of, tuning_of

log = logging.getLogger(__name__)

_OF_DRIVERS = (SetFeatures, SetPrivateFlags, SetTuning)
_NOT_A_DRIVERS: Final = frozenset(
    {errno.ENODEV, errno.ENOBUFS, errno.ENOMEM, errno.EINTR, errno.ETIMEDOUT, errno.EPERM, errno.EACCES, errno.EPROTO}
)
"""Errors that are not a refusal by the driver. After one of them the restore is tried again."""
_ADDR_GEN_MODE = "addr_gen_mode"
_ADDR_GEN_MODE_NONE = 1  # IN6_ADDR_GEN_MODE_NONE, include/uapi/linux/if_link.h


class LostError(Exception):
    """A netdev that no longer exists, so that it cannot be returned to the host. The text says why."""


def bring_home(kernel: Kernel, namespace: Namespace | None, move: NetdevMove) -> int:
    """Move the netdev back to the host unless it is there, and return its interface number. Raises LostError if the
    netdev no longer exists. Raises KernelError, after which the caller retries, if its bus device exists but the netdev
    has not appeared in a namespace yet."""
    links = kernel.links(kernel.host)
    home = find_on_host(links, move)
    ifindex = home.ifindex if home is not None else None
    if home is None and namespace is not None:
        there = look_in_pod(kernel, namespace, move)
        if there is not None:
            if move.link.peer and not kernel.hangs_on(namespace, there.ifindex, move.link):
                raise LostError(f"the pod has replaced it with another {move.link.kind} that has its number")
            ifindex = _move_home(kernel, namespace, there, move, links)
    if ifindex is not None:
        return ifindex
    nowhere = "neither on the host nor in the pod"
    if not move.link.parent:
        raise LostError(f"it is {nowhere}")
    if kernel.has_bus_device(move.link.parent):
        raise KernelError("find the netdev", errno.ENODEV, nowhere)
    raise LostError(f"{move.link.parent} was removed from the machine")


def capture_one(kernel: Kernel, ifindex: int) -> LinkState:
    """Return the host's link with its addresses, routes, neighbours and settings. Raises KernelError with ENODEV if the
    host does not have the link."""
    found = kernel.capture(kernel.host, (ifindex,)).get(ifindex)
    if found is None:
        raise KernelError(f"read link {ifindex}", errno.ENODEV)
    return found


def restore(kernel: Kernel, ifindex: int, wanted: LinkState) -> None:
    """Restore the host's link `ifindex` to the state `wanted`. An error does not stop the later phases.

    The order of the phases matters: see PHASES. Each phase starts from the link as the earlier phases have left it.
    """
    link = _Returned(kernel, ifindex, wanted, capture_one(kernel, ifindex))
    link.run(identity_ops)
    link.run(sysctl_ops)
    if link.run(settings_ops):  # without all settings the link stays down, or the kernel might add new addresses
        link.run(way_up_ops, capture=False)
    link.run(sysctl_ops)  # going up sets IPv6's MTU to the link's (if the carrier comes late, after this)
    link.run(address_ops)
    link.run(rest_ops)
    link.finish()


def departures(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return the operations that would restore the host's link from `found` to `wanted`; empty if they do not
    differ."""
    return tuple(op for phase in PHASES for op in phase(found, wanted))


def find_on_host(links: tuple[LinkState, ...], move: NetdevMove) -> LinkState | None:
    """Return the moved netdev from the host's links, or None. A virtual netdev must have its old kind, its old
    counterpart (a veth's other end, a child's lower link), and its old MAC or the name for parked netdevs. The
    interface number alone proves nothing, because CNI plugins also move links to the host."""
    wanted, parked = move.link, parked_name(move.link)
    if wanted.parent:
        return _physical(links, wanted, wanted.ifindex, {wanted.name, move.pod_name, parked})
    return _first(
        (link for link in links if link.kind == wanted.kind and not link.parent and _hangs_alike(link, wanted)),
        lambda link: (link.ifindex, link.mac) == (wanted.ifindex, wanted.mac),
        lambda link: link.name == parked,
        lambda link: (link.name, link.mac) == (wanted.name, wanted.mac),
    )


def _hangs_alike(link: LinkState, wanted: LinkState) -> bool:
    """Return whether both states of a link name the same counterpart: the other end of a veth, or the lower link of a
    child. True if `wanted` names none, as records of older daemons do."""
    return not wanted.peer or (link.peer, link.peer_netns) == (wanted.peer, wanted.peer_netns)


def look_in_pod(kernel: Kernel, namespace: Namespace, move: NetdevMove) -> LinkState | None:
    """Return the moved netdev as the pod has it, or None if the pod does not have it. First only the link with its
    number is read, because the pod may have many links, or links that cannot be parsed."""
    try:
        link = kernel.link(namespace, move.pod_ifindex)
    except KernelError as error:
        if error.errno != errno.EPROTO or not move.link.parent:
            raise
        link = None  # now a virtual link has the number: the description of a physical one can always be parsed
    found = find_in_pod((link,), move) if link is not None else None
    if found is not None or not move.link.parent:
        return found
    return find_in_pod(kernel.links(namespace), move)


def remove_foreign_names(kernel: Kernel, namespace: Namespace, move: NetdevMove) -> None:
    """Remove the alternative names that the pod gave to its netdev. Otherwise the netdev takes the names to the host
    when the pod's namespace ends. Does nothing if the pod no longer has the netdev."""
    there = look_in_pod(kernel, namespace, move)
    if there is not None:
        _remove_names(kernel, namespace, there, set(there.alt_names) - set(move.link.alt_names))


def find_in_pod(links: tuple[LinkState, ...], move: NetdevMove) -> LinkState | None:
    """Return the moved netdev from the pod's links, or None. It is recognised by what a pod cannot change: parent,
    permanent MAC, number and kind.

    A virtual netdev is recognised by number and kind only. The pod could give another link its MAC or name.
    """
    wanted = move.link
    if wanted.parent:
        return _physical(links, wanted, move.pod_ifindex, {move.pod_name})
    return next((link for link in links if (link.ifindex, link.kind) == (move.pod_ifindex, wanted.kind)), None)


def parked_name(wanted: LinkState) -> str:
    """Return a name for a netdev whose own name is taken on the host. No other program uses such names. The name has at
    most 15 characters."""
    return f"nrirdma-{wanted.ifindex}"[:15]


def _physical(links: tuple[LinkState, ...], wanted: LinkState, ifindex: int, names: set[str]) -> LinkState | None:
    """Return the link with the parent of `wanted`. If a PCI function has several netdevs, the permanent MAC decides,
    then the number, then the name."""
    siblings = [link for link in links if link.parent == wanted.parent and link.kind == wanted.kind]
    if wanted.permanent_mac:
        siblings = [link for link in siblings if link.permanent_mac == wanted.permanent_mac]
    return _first(
        siblings,
        lambda link: link.ifindex == ifindex,
        lambda link: link.name in names,
        lambda _link: len(siblings) == 1,
    )


def _first(links: Iterator[LinkState] | list[LinkState], *tests: Callable[[LinkState], bool]) -> LinkState | None:
    """Try the tests in order, and return the first link that passes one; None if no link passes any."""
    candidates = list(links)
    return next((link for test in tests for link in candidates if test(link)), None)


def _move_home(
    kernel: Kernel, namespace: Namespace, there: LinkState, move: NetdevMove, host_links: tuple[LinkState, ...]
) -> int | None:
    """Move the netdev from the pod to the host. Return its number on the host, or None if it does not arrive.

    The kernel refuses a move if the host has a link with the netdev's name, alternative name or number. Such a name or
    number is given up first, and restore() reports what it cannot restore.
    """
    wanted = move.link
    taken = {name for link in host_links for name in (link.name, *link.alt_names)}
    _remove_names(kernel, namespace, there, taken | (set(there.alt_names) - set(wanted.alt_names)))
    if there.mac != wanted.mac:  # before the move, because the MAC identifies a virtual link when it arrives
        raise_first(kernel.apply(namespace, there.ifindex, (SetLink(up=False), SetLink(mac=wanted.mac))))
    number_is_free = all(link.ifindex != wanted.ifindex for link in host_links)
    kernel.move_link(
        namespace,
        there.ifindex,
        kernel.host,
        parked_name(wanted) if wanted.name in taken else wanted.name,
        as_ifindex=wanted.ifindex if number_is_free else 0,
    )
    if number_is_free:  # then the number is known without a search
        return wanted.ifindex
    home = find_on_host(kernel.links(kernel.host), move)
    return home.ifindex if home is not None else None


def _remove_names(kernel: Kernel, namespace: Namespace, there: LinkState, names: set[str]) -> None:
    ops = tuple(DropAltName(name=name) for name in there.alt_names if name in names)
    if ops:
        raise_first(kernel.apply(namespace, there.ifindex, ops))


def identity_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return the operations for XDP, TCX, MAC, names and MTU, in this order. XDP and TCX programs that the pod attached
    are detached; XDP would limit the MTU. Each alternative name is one operation, so that a name which is taken does
    not stop the others."""
    ops: list[Op] = [DetachXdp()] if found.xdp else []
    if wanted.tcx is not None and set(found.tcx or ()) - set(wanted.tcx):
        ops.append(DetachTcx(keep=wanted.tcx))
    if found.up and (found.name, found.mac) != (wanted.name, wanted.mac):
        ops.append(SetLink(up=False))  # drivers, and kernels before 6.2, refuse both while it is up
    if found.mac != wanted.mac:
        ops.append(SetLink(mac=wanted.mac))
    if found.name != wanted.name:
        ops.append(SetLink(name=wanted.name))
    ops += (DropAltName(name=name) for name in found.alt_names if name not in wanted.alt_names)
    ops += (AddAltName(name=name) for name in wanted.alt_names if name not in found.alt_names)
    if (found.mtu, found.txqlen, found.alias) != (wanted.mtu, wanted.txqlen, wanted.alias):
        ops.append(SetLink(mtu=wanted.mtu, txqlen=wanted.txqlen, alias=wanted.alias))
    return tuple(ops)


def sysctl_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return the operations for the order of alternative names, for the driver's settings, and for the sysctls. Sysctls
    come after the MTU, because setting the MTU changes one of them. They come before the link goes up, because some
    forbid what the kernel does then."""
    return (*_alt_name_order(found, wanted), *driver_ops(found, wanted), *_other_sysctls(found, wanted))


def driver_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return the operations for ethtool settings, then for queueing disciplines, which may depend on the number of
    channels. They come after XDP is detached, because XDP may forbid them. They come before the link goes up, because
    changing settings may take it down."""
    return (
        *_other_features(found, wanted),
        *_other_private_flags(found, wanted),
        *_other_tuning(found, wanted),
        *_other_captured(found.queues, wanted.queues),
    )


def left_changed(found: LinkState, wanted: LinkState) -> tuple[str, ...]:
    """Return the driver's settings that differ from `wanted`, as texts: ``ring rx 64 (was 1024)``."""
    pairs = (
        (found.features, wanted.features),
        (found.private_flags, wanted.private_flags),
        (found.tuning, wanted.tuning),
        (found.dcb, wanted.dcb),
    )
    return tuple(words for here, there in pairs for words in _changed_lines(here, there))


def _changed_lines(found: str, wanted: str) -> Iterator[str]:
    """Yield the settings that have another value now. A setting that is missing before or now is not a change."""
    now = dict(line.rsplit(" ", 1) for line in found.splitlines())
    before = dict(line.rsplit(" ", 1) for line in wanted.splitlines())
    return (f"{name} {now[name]} (was {was})" for name, was in before.items() if now.get(name, was) != was)


def settings_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return the operations for settings that come before the link goes up. If the link is to go up, IPv6 address
    generation is switched off, so that the kernel adds no address; `rest_ops` sets the wanted value later."""
    settings = wanted.settings
    if wanted.up and not found.up:
        settings = tuple((name, _ADDR_GEN_MODE_NONE if name == _ADDR_GEN_MODE else value) for name, value in settings)
    return _other_settings(found, settings)


def way_up_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return the operation that takes the link up or down, if that is needed."""
    return (SetLink(up=wanted.up),) if found.up != wanted.up else ()


def address_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return the operations for addresses. They come before the routes, because the kernel adds and removes routes with
    addresses."""
    return _other_captured(found.addresses, wanted.addresses)


def rest_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return the operations for neighbours, forwarding entries and routes, then for settings. One setting, IPv6 address
    generation, was off while the link went up, and gets its wanted value here."""
    return (
        *_other_captured(found.neighbours, wanted.neighbours),
        *_other_captured(found.forwarding, wanted.forwarding),
        *_other_captured(found.routes, wanted.routes),
        *_other_settings(found, wanted.settings),
    )


RestorePhase: TypeAlias = Callable[[LinkState, LinkState], tuple[Op, ...]]
PHASES: Final[tuple[RestorePhase, ...]] = (
    identity_ops,
    sysctl_ops,
    settings_ops,
    way_up_ops,
    address_ops,
    rest_ops,
)
"""The phases of `restore` in their order: pure functions of the link's present state and its wanted state. `restore`
runs sysctl_ops a second time after way_up_ops."""


def _alt_name_order(found: LinkState, wanted: LinkState) -> Iterator[Op]:
    """Yield the operations that put the alternative names in order. The kernel lists them in the order in which they
    were added, so all names after the first misplaced one are removed and added again."""
    here, there = found.alt_names, wanted.alt_names
    if sorted(here) != sorted(there):
        return
    in_place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=True)))
    for name in there[in_place:]:
        yield DropAltName(name=name)
        yield AddAltName(name=name)


def _other_sysctls(found: LinkState, wanted: LinkState) -> tuple[SetSysctl, ...]:
    """Return the operations for sysctls that differ. A sysctl that the link lacks now is left out, since its address
    family is gone. The secret of stable addresses is set first, because setting it changes addr_gen_mode."""
    here = sysctls_of(found.sysctls)
    changes = [
        SetSysctl(key=name, value=value)
        for name, value in sysctls_of(wanted.sysctls).items()
        if here.get(name, "" if name == STABLE_SECRET else value) != value
    ]
    return tuple(sorted(changes, key=lambda op: op.key != STABLE_SECRET))


def _other_features(found: LinkState, wanted: LinkState) -> tuple[SetFeatures, ...]:
    """Return the operation for features that differ. A netdev keeps its features when it changes its namespace, so the
    pod's changes have stayed."""
    here = features_of(found.features)
    changes = tuple((name, on) for name, on in features_of(wanted.features).items() if here.get(name, on) != on)
    return (SetFeatures(features=changes),) if changes else ()


def _other_private_flags(found: LinkState, wanted: LinkState) -> tuple[SetPrivateFlags, ...]:
    here = features_of(found.private_flags)
    changes = tuple((name, on) for name, on in features_of(wanted.private_flags).items() if here.get(name, on) != on)
    return (SetPrivateFlags(flags=changes),) if changes else ()


def _other_tuning(found: LinkState, wanted: LinkState) -> tuple[SetTuning, ...]:
    """Return the operation for ring, channel and coalescing sizes that differ. A size that the driver does not report
    now is set, too: a driver hides sizes while adaptive coalescing is on, and setting sizes switches it off."""
    here = tuning_of(found.tuning)
    changes = tuple((name, value) for name, value in tuning_of(wanted.tuning).items() if here.get(name) != value)
    return (SetTuning(sizes=changes),) if here and changes else ()


def _other_settings(found: LinkState, wanted: tuple[tuple[str, int], ...]) -> tuple[SetSettings, ...]:
    changes = tuple(setting for setting in wanted if setting not in found.settings)
    return (SetSettings(settings=changes),) if changes else ()


def _other_captured(found: tuple[Captured, ...], wanted: tuple[Captured, ...]) -> tuple[Op, ...]:
    """Return the operations that remove extra things, last one first, and add missing ones. If anything is removed, all
    wanted things are added again, because the kernel removes secondary addresses with their primary one, and child
    queueing disciplines with their parent. Adding an existing thing succeeds."""
    texts = {thing.text for thing in wanted}
    extra = [Remove(thing=thing) for thing in reversed(found) if thing.text not in texts and not thing.kernel_made]
    here = set() if extra else {thing.text for thing in found}
    return (*extra, *(Restore(thing=thing) for thing in wanted if thing.text not in here))


def _has_lost_source(refused: Refused, wanted: LinkState) -> bool:
    """Return whether the kernel refused a route for its source address (`src`), because the host no longer has that
    address of another link: it was removed, or its link is in another pod."""
    if refused.error.errno != errno.EINVAL or not isinstance(refused.op, Restore):
        return False
    _, _, after = refused.op.thing.text.partition(" src ")
    own = {it.text.partition("/")[0] for it in wanted.addresses}
    return bool(after) and after.split()[0] not in own


class _Returned:
    """A link on the host whose configuration is being restored, phase by phase. `finish` raises the collected
    errors."""

    def __init__(self, kernel: Kernel, ifindex: int, wanted: LinkState, found: LinkState) -> None:
        self._kernel, self._ifindex, self._wanted, self._found = kernel, ifindex, wanted, found
        self._is_current = True
        self._errors: list[KernelError] = []
        self._read_only: set[str] = set()
        """Sysctls that this process can never write. They are only logged, because endless retries would hold the
        device for ever."""
        self._driver_refused: dict[str, None] = {}
        """Errors of settings that the driver refuses. They are only logged, because a retry would not help."""
        self._sourceless: dict[str, None] = {}
        """Errors of routes whose source address the host no longer has. They are only logged, because endless retries
        would hold the device for ever."""

    def run(self, phase: RestorePhase, *, capture: bool = True) -> bool:
        """Apply the operations of a phase, and return whether the kernel accepted all of them. With `capture`, first
        read the link again if an earlier phase has changed it. Raises KernelError if the link cannot be read."""
        if capture and not self._is_current:
            self._found, self._is_current = capture_one(self._kernel, self._ifindex), True
        ops = phase(self._found, self._wanted)
        if not ops:
            return True
        self._is_current = False
        refused = self._kernel.apply(self._kernel.host, self._ifindex, ops)
        read_only = [it.op for it in refused if it.error.errno == errno.EROFS and isinstance(it.op, SetSysctl)]
        self._read_only.update(op.key for op in read_only)
        by_driver = [it for it in refused if isinstance(it.op, _OF_DRIVERS) and it.error.errno not in _NOT_A_DRIVERS]
        self._driver_refused |= {str(it.error): None for it in by_driver}
        sourceless = [it for it in refused if _has_lost_source(it, self._wanted)]
        self._sourceless |= {str(it.error): None for it in sourceless}
        left_out = (*by_driver, *sourceless)
        self._errors += (it.error for it in refused if it.op not in read_only and it not in left_out)
        return not refused

    def finish(self) -> None:
        """Raise KernelError for the first error, with the others in its text. Log the failures that a retry cannot
        mend: sysctls that cannot be written, settings that the driver refuses, and routes without a source address."""
        if self._read_only:
            facts = {"link": self._wanted.name, "sysctls": ", ".join(sorted(self._read_only))}
            log.warning("sysctls are not restored: /proc/sys is read-only for the daemon", extra=facts)
        left = left_changed(self._found, self._wanted)
        if left or self._driver_refused:
            reported = {"link": self._wanted.name, "what": left, "refused": tuple(self._driver_refused)}
            log.warning("the driver's settings are not what the host had", extra=reported)
        if self._sourceless:
            told = {"link": self._wanted.name, "errors": tuple(self._sourceless)}
            log.warning("routes are not restored: the host no longer has their source address", extra=told)
        if self._errors:
            first, *others = self._errors
            raise KernelError(first.operation, first.errno, "; ".join([first.detail, *map(str, others)]).strip("; "))

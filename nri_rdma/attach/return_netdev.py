"""The way home of a netdev: find it wherever it is, move it, make it what it was.

Every function looks before it acts, so that all of this may run again at any point. A pod with NET_ADMIN may have done
to its netdev whatever it liked: renamed and readdressed it, or given it names that stand in the way on the host.
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
from nri_rdma.attach.port import Kernel, KernelError, Namespace, raise_first
from nri_rdma.model.link import STABLE_SECRET, Captured, LinkState, features_of, sysctls_of, tuning_of

log = logging.getLogger(__name__)

_OF_DRIVERS = (SetFeatures, SetPrivateFlags, SetTuning)
_NOT_A_DRIVERS: Final = frozenset(
    {errno.ENODEV, errno.ENOBUFS, errno.ENOMEM, errno.EINTR, errno.ETIMEDOUT, errno.EPERM, errno.EACCES, errno.EPROTO}
)
"""Errors that are no driver's answer to what is asked of it: the restore is tried again after them."""
_ADDR_GEN_MODE = "addr_gen_mode"
_ADDR_GEN_MODE_NONE = 1  # IN6_ADDR_GEN_MODE_NONE, include/uapi/linux/if_link.h


class LostError(Exception):
    """A netdev does not exist any more: there is nothing left to bring home. The text says why."""


def bring_home(kernel: Kernel, namespace: Namespace | None, move: NetdevMove) -> int:
    """Return the number of the netdev on the host, moved there if need be. Raises LostError.

    A physical one exists as long as its bus device does: KernelError when it is nowhere to be seen (it may be on its
    way: try again).
    """
    links = kernel.links(kernel.host)
    home = find_on_host(links, move)
    ifindex = home.ifindex if home is not None else None
    if home is None and namespace is not None:
        there = look_in_pod(kernel, namespace, move)
        if there is not None:
            if move.link.peer and not kernel.hangs_on(namespace, there.ifindex, move.link):
                raise LostError(f"the pod has replaced it by another {move.link.kind} of its number")
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
    """Return one of the host's links with all that it carries. ENODEV: the host does not have it."""
    found = kernel.capture(kernel.host, (ifindex,)).get(ifindex)
    if found is None:
        raise KernelError(f"read link {ifindex}", errno.ENODEV)
    return found


def restore(kernel: Kernel, ifindex: int, wanted: LinkState) -> None:
    """Make the host's link `ifindex` what it was. What fails does not keep the rest from being restored.

    The order of the phases matters: see PHASES. A phase sees the link as the phases before it have left it.
    """
    link = _Returned(kernel, ifindex, wanted, capture_one(kernel, ifindex))
    link.run(identity_ops)
    link.run(sysctl_ops)
    if link.run(settings_ops):  # not up before the settings are in place: something might appear that was not there
        link.run(way_up_ops, capture=False)
    link.run(sysctl_ops)  # the way up sets IPv6's MTU to the link's (where the carrier is late, after this)
    link.run(address_ops)
    link.run(rest_ops)
    link.finish()


def departures(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return what `restore` would do first of all to the host's link; empty when the link is what it was."""
    return tuple(op for phase in PHASES for op in phase(found, wanted))


def find_on_host(links: tuple[LinkState, ...], move: NetdevMove) -> LinkState | None:
    """The netdev among the host's links. A virtual one has its MAC when it arrives (`_move_home`); a number alone is no
    sign: CNI plugins move links to the host, and those keep numbers that are free. It hangs on what it hung on."""
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
    """Return whether two states of a link on the host name the same peer; one of an older journal names none."""
    return not wanted.peer or (link.peer, link.peer_netns) == (wanted.peer, wanted.peer_netns)


def look_in_pod(kernel: Kernel, namespace: Namespace, move: NetdevMove) -> LinkState | None:
    """Return the netdev as the pod has it, or None when the pod does not have it. The kernel is asked for its number
    first: whatever other links a pod has, they do not matter."""
    try:
        link = kernel.link(namespace, move.pod_ifindex)
    except KernelError as error:
        if error.errno != errno.EPROTO or not move.link.parent:
            raise
        link = None  # a virtual link that has the number now: what the kernel says of a physical one can be read
    found = find_in_pod((link,), move) if link is not None else None
    if found is not None or not move.link.parent:
        return found
    return find_in_pod(kernel.links(namespace), move)


def remove_foreign_names(kernel: Kernel, namespace: Namespace, move: NetdevMove) -> None:
    """Remove the alternative names that the pod gave to its netdev, if the pod still has it: the kernel takes them to
    the host with a netdev whose namespace ends."""
    there = look_in_pod(kernel, namespace, move)
    if there is not None:
        _remove_names(kernel, namespace, there, set(there.alt_names) - set(move.link.alt_names))


def find_in_pod(links: tuple[LinkState, ...], move: NetdevMove) -> LinkState | None:
    """The netdev among the pod's links, by what a pod cannot change: hardware address, parent, number, kind.

    A virtual netdev has its number only; a MAC or a name would let a pod pass off a link of its own.
    """
    wanted = move.link
    if wanted.parent:
        return _physical(links, wanted, move.pod_ifindex, {move.pod_name})
    return next((link for link in links if (link.ifindex, link.kind) == (move.pod_ifindex, wanted.kind)), None)


def parked_name(wanted: LinkState) -> str:
    """The host's name for a netdev whose own name is taken; nobody else uses it. At most 15 characters."""
    return f"nrirdma-{wanted.ifindex}"[:15]


def _physical(links: tuple[LinkState, ...], wanted: LinkState, ifindex: int, names: set[str]) -> LinkState | None:
    """By its parent; several netdevs of one function are told apart by permanent address, then by number and name."""
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
    """The first link that passes the earliest test that any passes."""
    candidates = list(links)
    return next((link for test in tests for link in candidates if test(link)), None)


def _move_home(
    kernel: Kernel, namespace: Namespace, there: LinkState, move: NetdevMove, host_links: tuple[LinkState, ...]
) -> int | None:
    """The number that the netdev has on the host after its move; None: it is not there.

    Name and number on the host may be taken by now, or the pod gave the link a name that is taken there, which makes
    the kernel refuse the move. It comes home all the same; restore() tells what cannot be had back yet."""
    wanted = move.link
    taken = {name for link in host_links for name in (link.name, *link.alt_names)}
    _remove_names(kernel, namespace, there, taken | (set(there.alt_names) - set(wanted.alt_names)))
    if there.mac != wanted.mac:  # before the move: a virtual link is known by it when it arrives
        raise_first(kernel.apply(namespace, there.ifindex, (SetLink(up=False), SetLink(mac=wanted.mac))))
    number_is_free = all(link.ifindex != wanted.ifindex for link in host_links)
    kernel.move_link(
        namespace,
        there.ifindex,
        kernel.host,
        parked_name(wanted) if wanted.name in taken else wanted.name,
        as_ifindex=wanted.ifindex if number_is_free else 0,
    )
    if number_is_free:  # where it is need not be looked for among all
        return wanted.ifindex
    home = find_on_host(kernel.links(kernel.host), move)
    return home.ifindex if home is not None else None


def _remove_names(kernel: Kernel, namespace: Namespace, there: LinkState, names: set[str]) -> None:
    ops = tuple(DropAltName(name=name) for name in there.alt_names if name in names)
    if ops:
        raise_first(kernel.apply(namespace, there.ifindex, ops))


def identity_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """XDP first, which limits the MTU (no link that has it is ever given away, so none may come back), and the pod's
    programs of TCX; the address before the name; each alternative name for itself, so that one that somebody has taken
    does not cost the others."""
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
    """The sysctls after the MTU, which sets one of them (and IPv6 needs 1280), and before the way up, which would do
    what they forbid. The order of alternative names, too, which is known once all of them are there."""
    return (*_alt_name_order(found, wanted), *driver_ops(found, wanted), *_other_sysctls(found, wanted))


def driver_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Return what ethtool sets, which XDP may forbid, and which may take a link down that is up; then the queueing
    disciplines, of which some go by the number of channels. Both come before the way up, which gives a link without a
    discipline the kernel's."""
    return (
        *_other_features(found, wanted),
        *_other_private_flags(found, wanted),
        *_other_tuning(found, wanted),
        *_other_captured(found.queues, wanted.queues),
    )


def left_changed(found: LinkState, wanted: LinkState) -> tuple[str, ...]:
    """Return what is not as it was of what only the driver can set: ``ring rx 64 (was 1024)``."""
    pairs = (
        (found.features, wanted.features),
        (found.private_flags, wanted.private_flags),
        (found.tuning, wanted.tuning),
        (found.dcb, wanted.dcb),
    )
    return tuple(words for here, there in pairs for words in _changed_lines(here, there))


def _changed_lines(found: str, wanted: str) -> Iterator[str]:
    """Yield the lines that are there with another value. What was not read before, or is not told now, is no change."""
    now = dict(line.rsplit(" ", 1) for line in found.splitlines())
    before = dict(line.rsplit(" ", 1) for line in wanted.splitlines())
    return (f"{name} {now[name]} (was {was})" for name, was in before.items() if now.get(name, was) != was)


def settings_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """The settings before the way up; with IPv6 address generation off if there is one, so that nothing appears
    late."""
    settings = wanted.settings
    if wanted.up and not found.up:
        settings = tuple((name, _ADDR_GEN_MODE_NONE if name == _ADDR_GEN_MODE else value) for name, value in settings)
    return _other_settings(found, settings)


def way_up_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Up or down."""
    return (SetLink(up=wanted.up),) if found.up != wanted.up else ()


def address_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Addresses before the routes that need them: routes come and go with them."""
    return _other_captured(found.addresses, wanted.addresses)


def rest_ops(found: LinkState, wanted: LinkState) -> tuple[Op, ...]:
    """Neighbours, forwarding entries and routes, then the settings that the way up needed otherwise."""
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
"""Pure functions (found, wanted), in the order in which `restore` runs them; it runs sysctl_ops once more after
way_up_ops."""


def _alt_name_order(found: LinkState, wanted: LinkState) -> Iterator[Op]:
    """A link tells its alternative names in the order in which it got them. Those that stand after a wrong one are
    removed and added again."""
    here, there = found.alt_names, wanted.alt_names
    if sorted(here) != sorted(there):
        return
    in_place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=True)))
    for name in there[in_place:]:
        yield DropAltName(name=name)
        yield AddAltName(name=name)


def _other_sysctls(found: LinkState, wanted: LinkState) -> tuple[SetSysctl, ...]:
    """Return the sysctls to be set. What the link has no more cannot be set: its kernel or its family has gone. A
    secret of stable addresses is named only where there is one; it is set first, because it changes how addresses are
    generated."""
    here = sysctls_of(found.sysctls)
    changes = [
        SetSysctl(key=name, value=value)
        for name, value in sysctls_of(wanted.sysctls).items()
        if here.get(name, "" if name == STABLE_SECRET else value) != value
    ]
    return tuple(sorted(changes, key=lambda op: op.key != STABLE_SECRET))


def _other_features(found: LinkState, wanted: LinkState) -> tuple[SetFeatures, ...]:
    """Return the features to be set: a netdev keeps its features through all namespaces, and with them what the pod
    changed."""
    here = features_of(found.features)
    changes = tuple((name, on) for name, on in features_of(wanted.features).items() if here.get(name, on) != on)
    return (SetFeatures(features=changes),) if changes else ()


def _other_private_flags(found: LinkState, wanted: LinkState) -> tuple[SetPrivateFlags, ...]:
    here = features_of(found.private_flags)
    changes = tuple((name, on) for name, on in features_of(wanted.private_flags).items() if here.get(name, on) != on)
    return (SetPrivateFlags(flags=changes),) if changes else ()


def _other_tuning(found: LinkState, wanted: LinkState) -> tuple[SetTuning, ...]:
    """Return the sizes to be set. One that is not told now is the driver's own at present: adaptive coalescing, which
    another size here switches off, hides it."""
    here = tuning_of(found.tuning)
    changes = tuple((name, value) for name, value in tuning_of(wanted.tuning).items() if here.get(name) != value)
    return (SetTuning(sizes=changes),) if here and changes else ()


def _other_settings(found: LinkState, wanted: tuple[tuple[str, int], ...]) -> tuple[SetSettings, ...]:
    changes = tuple(setting for setting in wanted if setting not in found.settings)
    return (SetSettings(settings=changes),) if changes else ()


def _other_captured(found: tuple[Captured, ...], wanted: tuple[Captured, ...]) -> tuple[Op, ...]:
    """Remove what was not there, the last of it first, and add what is missing. A removed primary address takes its
    secondary ones along, and a queueing discipline those below it, so after any removal all are added: one that is
    there is no error."""
    texts = {thing.text for thing in wanted}
    extra = [Remove(thing=thing) for thing in reversed(found) if thing.text not in texts and not thing.kernel_made]
    here = set() if extra else {thing.text for thing in found}
    return (*extra, *(Restore(thing=thing) for thing in wanted if thing.text not in here))


class _Returned:
    """A link of the host that is being restored, phase by phase; all errors are raised at the end."""

    def __init__(self, kernel: Kernel, ifindex: int, wanted: LinkState, found: LinkState) -> None:
        self._kernel, self._ifindex, self._wanted, self._found = kernel, ifindex, wanted, found
        self._is_current = True
        self._errors: list[KernelError] = []
        self._read_only: set[str] = set()
        """Sysctls that this process may not write, at no time: to try again would keep the device for ever."""
        self._driver_refused: dict[str, None] = {}
        """What the driver does not take back, at no time."""

    def run(self, phase: RestorePhase, *, capture: bool = True) -> bool:
        """Apply what a phase finds to do, and return whether nothing of it was refused. `capture`: look at the link
        first, if an earlier phase has changed it. Raises KernelError when that cannot be done."""
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
        self._errors += (it.error for it in refused if it.op not in read_only and it not in by_driver)
        return not refused

    def finish(self) -> None:
        """Raise the first error, with the others in its text. What will be refused at any time is a line in the log:
        sysctls that cannot be written, and what the driver does not take back."""
        if self._read_only:
            facts = {"link": self._wanted.name, "sysctls": ", ".join(sorted(self._read_only))}
            log.warning("sysctls are not restored: /proc/sys is read-only for the daemon", extra=facts)
        left = left_changed(self._found, self._wanted)
        if left or self._driver_refused:
            reported = {"link": self._wanted.name, "what": left, "refused": tuple(self._driver_refused)}
            log.warning("the driver's settings are not what the host had", extra=reported)
        if self._errors:
            first, *others = self._errors
            raise KernelError(first.operation, first.errno, "; ".join([first.detail, *map(str, others)]).strip("; "))

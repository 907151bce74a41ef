"""The way home of a netdev: find it wherever it is, move it, make it what it was.

Every function looks before it acts, so that all of this may run again at any point. A pod with NET_ADMIN may have done
to its netdev whatever it liked: renamed and readdressed it, or given it names that stand in the way on the host.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile

from nri_rdma.attach.plan import NetdevMove
from nri_rdma.attach.port import Kernel, KernelError, Namespace
from nri_rdma.model.link import STABLE_SECRET, Captured, LinkState, sysctls_of

_ADDR_GEN_MODE = "addr_gen_mode"
_ADDR_GEN_MODE_NONE = 1  # IN6_ADDR_GEN_MODE_NONE, include/uapi/linux/if_link.h

_PLAIN = ("name", "mac", "mtu", "txqlen", "alias", "up", "xdp", "settings")
_CAPTURED = ("addresses", "neighbours", "routes")


def bring_home(kernel: Kernel, namespace: Namespace | None, move: NetdevMove) -> LinkState | None:
    """The netdev on the host, moved there if need be, and captured; None when it does not exist any more.

    A physical one always exists: KernelError when it is nowhere to be seen (it may be on its way: try again).
    """
    links = kernel.links(kernel.host)
    home = find_on_host(links, move)
    ifindex = home.ifindex if home is not None else None
    if home is None and namespace is not None:
        there = look_in_pod(kernel, namespace, move)
        if there is not None:
            ifindex = _move_home(kernel, namespace, there, move, links)
    if ifindex is not None:
        return kernel.capture(kernel.host, ifindex)
    if move.link.parent:
        raise KernelError("find the netdev", errno.ENODEV, "neither on the host nor in the pod")
    return None  # a virtual netdev dies with its namespace or is deleted: there is nothing left to bring home


def restore(kernel: Kernel, ifindex: int, wanted: LinkState, found: LinkState | None = None) -> None:
    """Make the host's link `ifindex` what it was; `found` is what it is, captured just now. What fails does not keep
    the rest from being restored.

    Order matters: XDP first, which limits the MTU (no link that has it is ever given away, so none may come back); the
    address before the name; the MTU before the sysctls, one of which it sets (and IPv6 needs 1280); these before the
    way up, which would do what they forbid; the way up with IPv6 address generation off, so that nothing appears late;
    addresses before the routes that need them.
    """
    host, tries = kernel.host, _Tries()
    found = found or kernel.capture(host, ifindex)
    if found.xdp:
        with tries.one():
            kernel.detach_xdp(host, ifindex)
    if found.up and (found.name, found.mac) != (wanted.name, wanted.mac):
        with tries.one():
            kernel.set_link(host, ifindex, up=False)  # drivers, and kernels before 6.2, refuse both while it is up
            found = replace(found, up=False)
    if found.mac != wanted.mac:
        with tries.one():
            kernel.set_link(host, ifindex, mac=wanted.mac)
    if found.name != wanted.name:
        with tries.one():
            kernel.set_link(host, ifindex, name=wanted.name)
    _restore_alt_names(kernel, ifindex, found, wanted, tries)
    found = _restore_numbers(kernel, ifindex, found, wanted, tries)
    _restore_settings_then_up(kernel, ifindex, found, wanted, tries)
    # Once more: the way up sets IPv6's MTU to the link's (where the carrier is late, after this: then it stays so).
    now = _restore_sysctls(kernel, ifindex, kernel.capture(host, ifindex), wanted, tries)
    if _restore_captured(kernel, ifindex, wanted.addresses, now.addresses, tries):
        now = kernel.capture(host, ifindex)  # routes come and go with addresses
    _restore_captured(kernel, ifindex, wanted.neighbours, now.neighbours, tries)
    _restore_captured(kernel, ifindex, wanted.routes, now.routes, tries)
    with tries.one():
        _set_settings(kernel, ifindex, now.settings, wanted.settings)
    tries.finish()


def departures(found: LinkState, wanted: LinkState) -> tuple[str, ...]:
    """In what the host's link is not as it was, of all that `restore` restores; empty when it is."""
    plain = [name for name in _PLAIN if getattr(found, name) != getattr(wanted, name)]
    names = ["alt_names"] if found.alt_names != wanted.alt_names else []
    sysctls = [name for name, _ in _other_sysctls(found, wanted)]
    captured = [name for name in _CAPTURED if _differ(getattr(found, name), getattr(wanted, name))]
    return (*plain, *names, *sysctls, *captured)


def find_on_host(links: tuple[LinkState, ...], move: NetdevMove) -> LinkState | None:
    """The netdev among the host's links. A virtual one has its MAC when it arrives (`_move_home`); a number alone is no
    sign: CNI plugins move links to the host, and those keep numbers that are free."""
    wanted, parked = move.link, parked_name(move.link)
    if wanted.parent:
        return _physical(links, wanted, wanted.ifindex, {wanted.name, move.pod_name, parked})
    return _first(
        (link for link in links if link.kind == wanted.kind and not link.parent),
        lambda link: (link.ifindex, link.mac) == (wanted.ifindex, wanted.mac),
        lambda link: link.name == parked,
        lambda link: (link.name, link.mac) == (wanted.name, wanted.mac),
    )


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
        kernel.set_link(namespace, there.ifindex, up=False)
        kernel.set_link(namespace, there.ifindex, mac=wanted.mac)
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
    unwanted = tuple(name for name in there.alt_names if name in names)
    if unwanted:
        kernel.set_alt_names(namespace, there.ifindex, add=(), remove=unwanted)


def _restore_alt_names(kernel: Kernel, ifindex: int, found: LinkState, wanted: LinkState, tries: _Tries) -> None:
    """One by one: a name that somebody has taken must not cost the others. A link tells them in the order in which it
    got them, so those that stand before a missing one are given anew after it, once all can be had."""
    here = list(found.alt_names)
    for name in found.alt_names:
        if name not in wanted.alt_names:
            with tries.one():
                kernel.set_alt_names(kernel.host, ifindex, add=(), remove=(name,))
                here.remove(name)
    for name in wanted.alt_names:
        if name not in here:
            with tries.one():
                kernel.set_alt_names(kernel.host, ifindex, add=(name,), remove=())
                here.append(name)
    in_place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here, wanted.alt_names, strict=False)))
    if len(here) == len(wanted.alt_names):
        for name in wanted.alt_names[in_place:]:
            with tries.one():
                kernel.set_alt_names(kernel.host, ifindex, add=(name,), remove=(name,))


def _restore_numbers(kernel: Kernel, ifindex: int, found: LinkState, wanted: LinkState, tries: _Tries) -> LinkState:
    """The numbers, then the sysctls. Returns the link as it is then."""
    if (found.mtu, found.txqlen, found.alias) != (wanted.mtu, wanted.txqlen, wanted.alias):
        with tries.one():
            kernel.set_link(kernel.host, ifindex, mtu=wanted.mtu, txqlen=wanted.txqlen, alias=wanted.alias)
        found = kernel.capture(kernel.host, ifindex)
    return _restore_sysctls(kernel, ifindex, found, wanted, tries)


def _restore_sysctls(kernel: Kernel, ifindex: int, found: LinkState, wanted: LinkState, tries: _Tries) -> LinkState:
    """Returns the link as it is then."""
    sysctls = _other_sysctls(found, wanted)
    if not sysctls:
        return found
    with tries.one():
        kernel.set_sysctls(kernel.host, ifindex, sysctls)
    return kernel.capture(kernel.host, ifindex)


def _other_sysctls(found: LinkState, wanted: LinkState) -> tuple[tuple[str, str], ...]:
    """Those to be set. What the link has no more cannot be: its kernel or its family has gone. A secret of stable
    addresses is told only where there is one."""
    here = sysctls_of(found.sysctls)
    return tuple(
        (name, value)
        for name, value in sysctls_of(wanted.sysctls).items()
        if here.get(name, "" if name == STABLE_SECRET else value) != value
    )


def _restore_settings_then_up(kernel: Kernel, ifindex: int, found: LinkState, wanted: LinkState, tries: _Tries) -> None:
    settings = wanted.settings
    if wanted.up and not found.up:
        settings = tuple((name, _ADDR_GEN_MODE_NONE if name == _ADDR_GEN_MODE else value) for name, value in settings)
    with tries.one():
        _set_settings(kernel, ifindex, found.settings, settings)
        if found.up != wanted.up:  # not before the settings are in place: something might appear that was not there
            kernel.set_link(kernel.host, ifindex, up=wanted.up)


def _set_settings(
    kernel: Kernel, ifindex: int, found: tuple[tuple[str, int], ...], wanted: tuple[tuple[str, int], ...]
) -> None:
    changes = tuple(setting for setting in wanted if setting not in found)
    if changes:
        kernel.set_settings(kernel.host, ifindex, changes)


def _restore_captured(
    kernel: Kernel, ifindex: int, wanted: tuple[Captured, ...], found: tuple[Captured, ...], tries: _Tries
) -> bool:
    """Remove what was not there, add what is missing; whether there was anything to do. A removed primary address takes
    its secondary ones along, so after any removal all are added: one that is there is no error."""
    texts = {thing.text for thing in wanted}
    extra = [thing for thing in found if thing.text not in texts and not thing.kernel_made]
    for thing in extra:
        with tries.one():
            kernel.remove(kernel.host, ifindex, thing)
    here = set() if extra else {thing.text for thing in found}
    missing = [thing for thing in wanted if thing.text not in here]
    for thing in missing:
        with tries.one():
            kernel.replay(kernel.host, ifindex, thing)
    return bool(extra or missing)


def _differ(found: tuple[Captured, ...], wanted: tuple[Captured, ...]) -> bool:
    here, there = {thing.text for thing in found}, {thing.text for thing in wanted}
    return bool(there - here) or any(thing.text not in there for thing in found if not thing.kernel_made)


class _Tries:
    """Goes on after an error and tells all of them at the end."""

    def __init__(self) -> None:
        self._errors: list[KernelError] = []

    @contextmanager
    def one(self) -> Iterator[None]:
        """One thing that may fail."""
        try:
            yield
        except KernelError as error:
            self._errors.append(error)

    def finish(self) -> None:
        """Raise the first error, with the others in its text."""
        if self._errors:
            first, *others = self._errors
            raise KernelError(first.operation, first.errno, "; ".join([first.detail, *map(str, others)]).strip("; "))

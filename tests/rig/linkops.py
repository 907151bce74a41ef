"""Changes of links as a test says them, over the port's operations. The first one that is refused is raised."""

import errno
from collections.abc import Collection
from ipaddress import IPv4Interface, IPv6Interface

from nri_rdma.attach.ops import (
    AddAddress,
    AddAltName,
    DetachXdp,
    DropAltName,
    Op,
    Remove,
    RenameRdma,
    Restore,
    SetLink,
    SetSettings,
    SetSysctl,
)
from nri_rdma.attach.port import Kernel, KernelError, Namespace, raise_first
from nri_rdma.model.link import Captured, LinkState


def apply(kernel: Kernel, namespace: Namespace, index: int, *ops: Op) -> None:
    """Apply all of them."""
    raise_first(kernel.apply(namespace, index, ops))


def capture(kernel: Kernel, namespace: Namespace, ifindex: int) -> LinkState:
    """One link with all that it carries. ENODEV: it is not there."""
    found = kernel.capture(namespace, (ifindex,)).get(ifindex)
    if found is None:
        raise KernelError("capture", errno.ENODEV)
    return found


def set_link(
    kernel: Kernel,
    namespace: Namespace,
    ifindex: int,
    *,
    name: str | None = None,
    mtu: int | None = None,
    mac: str | None = None,
    txqlen: int | None = None,
    alias: str | None = None,
    up: bool | None = None,
) -> None:
    """In one request."""
    apply(kernel, namespace, ifindex, SetLink(name=name, mtu=mtu, mac=mac, txqlen=txqlen, alias=alias, up=up))


def configure(
    kernel: Kernel,
    namespace: Namespace,
    ifindex: int,
    *,
    mtu: int | None,
    addresses: Collection[IPv4Interface | IPv6Interface],
) -> None:
    """The MTU, the addresses, the way up."""
    numbers = (SetLink(mtu=mtu),) if mtu is not None else ()
    apply(kernel, namespace, ifindex, *numbers, *(AddAddress(address=it) for it in addresses), SetLink(up=True))


def set_settings(kernel: Kernel, namespace: Namespace, ifindex: int, settings: tuple[tuple[str, int], ...]) -> None:
    """In one request."""
    apply(kernel, namespace, ifindex, SetSettings(settings=settings))


def set_sysctls(kernel: Kernel, namespace: Namespace, ifindex: int, sysctls: tuple[tuple[str, str], ...]) -> None:
    """One after the other."""
    apply(kernel, namespace, ifindex, *(SetSysctl(key=key, value=value) for key, value in sysctls))


def set_alt_names(
    kernel: Kernel, namespace: Namespace, ifindex: int, *, add: tuple[str, ...], remove: tuple[str, ...]
) -> None:
    """Remove some, then add some."""
    dropped = (DropAltName(name=name) for name in remove)
    apply(kernel, namespace, ifindex, *dropped, *(AddAltName(name=name) for name in add))


def detach_xdp(kernel: Kernel, namespace: Namespace, ifindex: int) -> None:
    """Every program."""
    apply(kernel, namespace, ifindex, DetachXdp())


def add_address(kernel: Kernel, namespace: Namespace, ifindex: int, address: IPv4Interface | IPv6Interface) -> None:
    """One that is not there yet."""
    apply(kernel, namespace, ifindex, AddAddress(address=address))


def replay(kernel: Kernel, namespace: Namespace, ifindex: int, thing: Captured) -> None:
    """Add what was captured."""
    apply(kernel, namespace, ifindex, Restore(thing=thing))


def remove(kernel: Kernel, namespace: Namespace, ifindex: int, thing: Captured) -> None:
    """Remove what was captured."""
    apply(kernel, namespace, ifindex, Remove(thing=thing))


def rename_rdma(kernel: Kernel, namespace: Namespace, index: int, name: str) -> None:
    """Of an RDMA device."""
    apply(kernel, namespace, index, RenameRdma(name=name))

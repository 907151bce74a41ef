"""Checks whether the libraries in a container's image can use the RDMA devices that the container gets: libibverbs, the
provider of each device, and the version of the kernel's interface.

libibverbs leaves out a device that it cannot use. A program then sees no device, or fewer, and most programs go on over
TCP. Each problem is therefore reported with its cause and with the package to install.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.errors import ErrorCode, UserspaceError
from nri_rdma.model.device import CharKind, DeviceId, RdmaDevice
from nri_rdma.model.userspace import KernelDevice, Lack, Provider, Userspace, UserspaceCheck

SOFT_ROCE, SOFT_IWARP = "rdma_rxe", "siw"
"""The drivers of soft devices. They are constants because sysfs does not show them."""

PROVIDERS = {
    "be2net": "ocrdma",
    "bnxt_en": "bnxt_re",
    "cxgb4": "cxgb4",
    "efa": "efa",
    "erdma": "erdma",
    "hfi1": "hfi1verbs",
    "hns3": "hns",
    "hns_roce": "hns",
    "i40e": "irdma",
    "ib_mthca": "mthca",
    "ib_qib": "ipathverbs",
    "ice": "irdma",
    "idpf": "irdma",
    "ionic": "ionic",
    "mana": "mana",
    "mlx4_core": "mlx4",
    "mlx5_core": "mlx5",
    "qede": "qedr",
    SOFT_IWARP: "siw",
    SOFT_ROCE: "rxe",
    "vmw_pvrdma": "vmw_pvrdma",
}
"""By driver: its provider, which is the library of rdma-core for the driver's devices. The driver is that of the
network card, as sysfs shows it, even if the card's RDMA part has another driver."""

_PACKAGES = {
    "debian": "libibverbs1 and ibverbs-providers, both of one release",
    "fedora": "libibverbs, which has the providers",
    "suse": "libibverbs1 and libibverbs, both of one release",
}
_OTHER_PACKAGES = "libibverbs of rdma-core with its providers"
_ELSE = 'a container that does not use RDMA: leave it out of `containers`, or write `userspace: "off"`'
_TCP = "its programs find no RDMA device, and most go on over TCP"


def checked_devices(attached: Iterable[AttachedRequest], container: str) -> tuple[RdmaDevice, ...]:
    """Return the devices of a container for which its image has to be checked: those whose uverbs nodes it gets, unless
    the request turns the check off."""
    found: dict[DeviceId, RdmaDevice] = {}
    for item in attached:
        request = item.admitted.request
        is_asked = request.userspace is not UserspaceCheck.OFF and CharKind.UVERBS in request.char_kinds
        if is_asked and request.scope.covers(container):
            found |= {it.device.id: it.device for it in item.devices}
    return tuple(found.values())


def driver_of(device: RdmaDevice) -> str:
    """Return the kernel's driver of a device, as a key of `PROVIDERS`; "" if it has none."""
    if device.is_soft:
        return SOFT_IWARP if device.node_type == "RNIC" else SOFT_ROCE
    return device.driver.partition(".")[0]  # a subfunction's driver has a suffix: mlx5_core.sf


def kernel_device(device: RdmaDevice, abi_of: Callable[[str], int | None]) -> KernelDevice:
    """Return the facts about a device that userspace libraries check. `abi_of` takes the name of a device node
    (``uverbs0``) and returns the version of the kernel's interface; None if the version is unknown."""
    nodes = [it.path.rpartition("/")[2] for it in device.char_devices if it.kind is CharKind.UVERBS]
    return KernelDevice(name=device.name, driver=driver_of(device), abi=abi_of(nodes[0]) if nodes else None)


def providers_of(devices: Iterable[KernelDevice]) -> frozenset[str]:
    """Return the providers that these devices need. Devices with unknown drivers are left out."""
    return frozenset(PROVIDERS[it.driver] for it in devices if it.driver in PROVIDERS)


def problems_of(
    userspace: Userspace, devices: tuple[KernelDevice, ...], where: str, machine: str
) -> tuple[UserspaceError, ...]:
    """Return the reasons why programs of this image cannot use the devices. Empty if they can, or if the image could
    not be read. A missing library hides the problems of providers, which need it. `machine` is the node's
    architecture."""
    if userspace.unseen or not devices:
        return ()
    install = f"install {_PACKAGES.get(userspace.family, _OTHER_PACKAGES)}"
    found = _without_library(userspace, machine, install) if not userspace.path else _lacking(userspace, install)
    problems = tuple(found) or tuple(_of_providers(userspace, devices, install))
    return tuple(
        UserspaceError(code, f"{what}{_shown(userspace)}", where=where, hint=f"{next_step}; {_ELSE}")
        for code, what, next_step in problems
    )


_Problem = tuple[ErrorCode, str, str]
"""A problem as its error code, its sentence and the next step."""


def _without_library(userspace: Userspace, machine: str, install: str) -> Iterator[_Problem]:
    if userspace.foreign:
        path, other = userspace.foreign[0]
        what = f"the image's {path} is for {other}, and this node's programs are for {machine}"
        yield ErrorCode.USERSPACE_MISMATCH, what, f"use the image for {machine}, or {install} for it"
    elif userspace.has_musl and not userspace.has_glibc:
        what = f"the image has no libibverbs.so.1, and musl as its C library: {_TCP}"
        yield ErrorCode.USERSPACE_MISSING, what, _MUSL
    else:
        yield ErrorCode.USERSPACE_MISSING, f"the image has no libibverbs.so.1: {_TCP}", install


_MUSL = (
    "install rdma-core as its distribution builds it for musl, or use an image with glibc: a library of one cannot be"
    " loaded with the other"
)


def _lacking(userspace: Userspace, install: str) -> Iterator[_Problem]:
    """Yield why libibverbs itself cannot be loaded."""
    if not userspace.lacks:
        return
    if userspace.has_musl and not userspace.has_glibc:
        what = f"the image's {userspace.path} is for glibc, and its C library is musl: {_TCP}"
        yield ErrorCode.USERSPACE_MISMATCH, what, _MUSL
        return
    yield _of_lack(userspace.path, userspace.lacks[0], install)


def _of_providers(userspace: Userspace, devices: tuple[KernelDevice, ...], install: str) -> Iterator[_Problem]:
    by_provider: dict[str, list[KernelDevice]] = {}
    for device in devices:
        if device.driver in PROVIDERS:
            by_provider.setdefault(PROVIDERS[device.driver], []).append(device)
    for name, own in by_provider.items():
        provider = userspace.provider(name) or Provider(name=name)
        yield from _of_provider(userspace, provider, own, install)


def _of_provider(
    userspace: Userspace, provider: Provider, devices: list[KernelDevice], install: str
) -> Iterator[_Problem]:
    names = ", ".join(it.name for it in devices)
    if not provider.path and provider.others:
        what = (
            f"the image's {provider.others[0]} is of another release than its libibverbs, which looks for"
            f" lib{provider.name}-rdmav{userspace.release}.so: {names} cannot be used"
        )
        yield ErrorCode.USERSPACE_MISMATCH, what, install
    elif not provider.path:
        what = f"the image's libibverbs has no provider {provider.name}: {names} cannot be used"
        yield ErrorCode.USERSPACE_MISSING, what, f"{install}, of a release that knows {devices[0].driver}"
    elif not provider.is_listed:
        what = f"no file in the image's libibverbs.d names the provider {provider.name}: {names} cannot be used"
        yield ErrorCode.USERSPACE_MISSING, what, f"{install}, with their configuration in /etc"
    elif provider.lacks:
        yield _of_lack(provider.path, provider.lacks[0], install)
    elif provider.abi is not None:
        yield from _of_abi(provider, provider.abi, devices)


def _of_abi(provider: Provider, abi: tuple[int, int], devices: list[KernelDevice]) -> Iterator[_Problem]:
    least, most = abi
    for device in devices:
        if device.abi is None or least <= device.abi <= most:
            continue
        supported = str(least) if least == most else f"{least} to {most}"
        what = (
            f"the kernel's driver of {device.name}, {device.driver}, has version {device.abi} of its interface, and the"
            f" image's provider {provider.name} supports {supported}"
        )
        step = "use an image with the rdma-core that belongs to the node's driver: a vendor's driver has one of its own"
        yield ErrorCode.USERSPACE_MISMATCH, what, step
        return


def _of_lack(path: str, lack: Lack, install: str) -> _Problem:
    if lack.symbol:
        what = f"the image's {path} needs {lack.symbol} ({lack.version}) of {lack.library}, which its release lacks"
    elif lack.version:
        what = f"the image's {path} needs {lack.library} with {lack.version}, and the image's is of another release"
    else:
        what = f"the image's {path} needs {lack.library}, which the image does not have"
        return ErrorCode.USERSPACE_MISSING, what, f"{install}, with what they depend on"
    return ErrorCode.USERSPACE_MISMATCH, what, install


def _shown(userspace: Userspace) -> str:
    return f" ({userspace.distribution})" if userspace.distribution else ""

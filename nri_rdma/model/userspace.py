"""The libraries for RDMA in a container's image: libibverbs, and its providers for each kind of device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class UserspaceCheck(StrEnum):
    """The setting that decides whether the libraries in a container's image are compared with the kernel before it
    starts."""

    CHECK = "check"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Something that a library needs and the image lacks. It is a library, one version of it (`version`), or one symbol
    of that version (`symbol`). "" stands for any version, or for all needed symbols."""

    library: str
    version: str = ""
    symbol: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The libibverbs provider for one kind of device. `name` is taken from its file name, for example ``mlx5``."""

    name: str
    path: str = ""
    """The path of its file; "" if libibverbs would find none."""
    is_listed: bool = False
    """Whether a file in libibverbs.d names it; libibverbs loads no other provider."""
    others: tuple[str, ...] = ()
    """Files of this provider for other releases of libibverbs, if there is none for the image's release."""
    abi: tuple[int, int] | None = None
    """The lowest and highest version of the kernel's interface that it supports; None if they cannot be read."""
    lacks: tuple[Lack, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Userspace:
    """The RDMA libraries below the root folder of a container. Paths and texts come from the image, so they are
    untrusted."""

    family: str = ""
    """The family of distributions whose packages the image uses: ``debian``, ``fedora``, ``suse``, ``alpine``, or
    another distribution's ID."""
    distribution: str = ""
    """The name of the distribution, for messages."""
    path: str = ""
    """The path of libibverbs.so.1; "" if the dynamic loader would not find it."""
    release: str = ""
    """The version of the interface between libibverbs and its providers, for example ``34``."""
    lacks: tuple[Lack, ...] = ()
    """The libraries, versions and symbols that libibverbs needs and the image lacks."""
    foreign: tuple[tuple[str, str], ...] = ()
    """The files of libibverbs for other architectures, each with its architecture, if there is none for this one."""
    has_musl: bool = False
    """Whether the image has the loader of musl, a C library other than glibc."""
    has_glibc: bool = False
    providers: tuple[Provider, ...] = ()
    unseen: str = ""
    """The reason why the image could not be read, "" if it could; the other fields are then empty."""

    def provider(self, name: str) -> Provider | None:
        """Return the provider with this name, or None if it was not looked for."""
        return next((it for it in self.providers if it.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDevice:
    """A device as libibverbs sees it. `driver` is the kernel's driver, "" if unknown. `abi` is the version of the
    kernel's interface in ``uverbsN/abi_version``; None if it cannot be read."""

    name: str
    driver: str
    abi: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The facts from which the root folder of a created container is found.

    The root folder is that of the container's first process: `pid` or, if that is 0, the first process of its cgroup. A
    process that does not belong to `container_id` has reused the PID and is ignored. `bundle` is the folder with the
    OCI runtime's configuration. It is set only at the hook createRuntime, when the process does not have its root
    folder yet. `library_path` is the container's LD_LIBRARY_PATH.
    """

    container_id: str = ""
    pid: int = 0
    cgroups_path: str = ""
    bundle: str = ""
    library_path: str = ""

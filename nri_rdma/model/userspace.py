"""What a container's image has for programs that use RDMA: libibverbs, and the providers that know each device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class UserspaceCheck(StrEnum):
    """The choice whether the libraries in a container's image are compared with the kernel before it starts."""

    CHECK = "check"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Something that a library needs and its image does not have: a library, a version of it ("": any), or a symbol of
    that version ("": all that it needs)."""

    library: str
    version: str = ""
    symbol: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The provider of one kind of device, as libibverbs would load it. `name` is that of its file, ``mlx5``."""

    name: str
    path: str = ""
    """"" where there is none that libibverbs would find."""
    is_listed: bool = False
    """Whether a file in libibverbs.d names it: libibverbs loads no other."""
    others: tuple[str, ...] = ()
    """Files of providers of that name, for another release of libibverbs, where there is none for this one."""
    abi: tuple[int, int] | None = None
    """The lowest and highest version of the kernel's interface that it supports; None where that cannot be read."""
    lacks: tuple[Lack, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Userspace:
    """The libraries for RDMA that were found below the root of a container. Paths and texts come from the image."""

    family: str = ""
    """The distribution whose packages it has: ``debian``, ``fedora``, ``suse``, ``alpine``, or another's ID."""
    distribution: str = ""
    """Its name for people."""
    path: str = ""
    """Of libibverbs.so.1; "" where no program would find it."""
    release: str = ""
    """The version of the interface between libibverbs and its providers: ``34``."""
    lacks: tuple[Lack, ...] = ()
    """What libibverbs lacks."""
    foreign: tuple[tuple[str, str], ...] = ()
    """Where there is no other: files of that name for another architecture, each with that architecture."""
    has_musl: bool = False
    """Whether the image has the loader of musl, another C library than glibc."""
    has_glibc: bool = False
    providers: tuple[Provider, ...] = ()
    unseen: str = ""
    """Why the image could not be read; then nothing is known."""

    def provider(self, name: str) -> Provider | None:
        """Return the provider of that name, if it was looked for."""
        return next((it for it in self.providers if it.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDevice:
    """A device as userspace meets it: `driver` is the kernel's, "" where nobody knows it, `abi` the version of the
    interface that its ``uverbsN/abi_version`` says (None: it cannot be read)."""

    name: str
    driver: str
    abi: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The place of the root folder of a container that was made, by its first process: that is `pid`, or where that is
    0 the first one of its cgroup. A process of that number that is not of `container_id` is another one. Before the
    process has the folder for its root (createRuntime), `bundle` is where the OCI runtime has its configuration; ""
    after that, and `library_path` is its LD_LIBRARY_PATH then."""

    container_id: str = ""
    pid: int = 0
    cgroups_path: str = ""
    bundle: str = ""
    library_path: str = ""

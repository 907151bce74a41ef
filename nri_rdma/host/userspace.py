"""Find libibverbs and its providers (its drivers, such as libmlx5) below a container's root, at the places where the
container's dynamic loader and libibverbs look for them.

Nothing in the image is run. The folder and the file names of providers are read from libibverbs itself. A provider's
data says which ABI versions of the kernel it supports (`verbs_device_ops` of rdma-core's libibverbs/driver.h).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import chain, islice

from nri_rdma.host.elf import Elf, ElfError
from nri_rdma.host.root_folder import RootFolder
from nri_rdma.model.userspace import Lack, Provider, Userspace

LIBIBVERBS = "libibverbs.so.1"
LONGEST_PATH = 4096
MOST_FOLDERS = 64
"""The most library folders that an image may name. The dynamic loader's standard folders are searched in addition."""
MOST_CONFIGURED = 256
"""The most files and include lines to read from /etc/ld.so.conf. It is limited because these files may include each
other."""
MOST_S = 10
"""Seconds that reading one image may take. It is limited because one thread reads the images of all containers."""
_TEXT_BYTES = 64 << 10
"""The most bytes to read from a configuration file of the image."""
_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 21: "ppc64le", 22: "s390x", 243: "riscv64"}
"""Names of architectures as `uname -m` prints them, by ELF machine number."""
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu", "i386-linux-gnu", "arm-linux-gnueabihf")
_PROVIDER = b"/lib%s-rdmav"
"""The bytes by which the file names of providers (the drivers of libibverbs) are found in the data of libibverbs."""
_CONFIGURATION = b"/libibverbs.d"
_PROVIDER_FILE = re.compile(r"lib%s-rdmav([0-9]{1,6})\.so")
_PRIVATE = re.compile(r"IBVERBS_PRIVATE_([0-9]{1,6})")
_DRIVER = re.compile(r"^[\t ]*driver[\t ]+([^\t\n ]+)", re.MULTILINE)
_FAMILIES = ("debian", "fedora", "suse", "alpine")
_OPS_NAMES = {"vmw_pvrdma": "pvrdma"}
"""The names of providers whose structure `verbs_device_ops` has another name than their file."""
_MOST_ABI = 2**31 - 1


def read_userspace(root: RootFolder, providers: Collection[str], library_path: str = "") -> Userspace:
    """Return the RDMA libraries below a container's root, and whether libibverbs finds these `providers` (its drivers).
    `library_path` is the container's LD_LIBRARY_PATH.

    Never raises OSError: the field `unseen` of the result says why the image cannot be read.
    """
    try:
        return _Reading(root, library_path).userspace(sorted(providers))
    except _TooMuchError as error:
        return Userspace(unseen=str(error))
    except OSError as error:
        on_mount = error.errno == errno.EXDEV
        why = "it is on a mount of the container, which is not entered" if on_mount else error.strerror
        return Userspace(unseen=f"{_plain(str(error.filename or 'a file'))} cannot be read: {why}")


class _TooMuchError(Exception):
    """The error for an image that exceeds a limit of this module; the text says which."""


class _Reading:
    """The state of reading the libraries below one container's root. A library's symbols are dropped early, because an
    image may have many."""

    def __init__(self, root: RootFolder, library_path: str) -> None:
        self._image, self._by = root, time.monotonic() + MOST_S
        self._configured_left = MOST_CONFIGURED
        self._machine = os.uname().machine
        self._folders = tuple(dict.fromkeys(self._library_folders(library_path)))

    @property
    def _root(self) -> RootFolder:
        """The container's root folder, in which files are read. Raises _TooMuchError once the time for reading this
        image is over."""
        if time.monotonic() > self._by:
            raise _TooMuchError(f"the image was not read within {MOST_S} s")
        return self._image

    def userspace(self, providers: list[str]) -> Userspace:
        family, distribution = self._distribution()
        musl = self._root.has(f"/lib/ld-musl-{self._machine}.so.1")
        found = self._find(LIBIBVERBS)
        glibc = bool(self._find("libc.so.6"))
        if not found:
            return Userspace(
                family=family,
                distribution=distribution,
                has_musl=musl,
                has_glibc=glibc,
                foreign=tuple(self._foreign()),
            )
        with self._library(found) as elf:
            data, exported = elf.data(), elf.symbols_defined()
            lacks = tuple(self._lacks(elf))
        folder, _, file = _text_around(data, _PROVIDER).rpartition("/")
        folder, told = folder or f"{found.rpartition('/')[0]}/libibverbs", _PROVIDER_FILE.fullmatch(file)
        private = (_PRIVATE.fullmatch(version) for _, version in exported)
        release = told[1] if told else next((it[1] for it in private if it), "")
        listed = self._listed(_text_around(data, _CONFIGURATION))
        return Userspace(
            family=family,
            distribution=distribution,
            path=_plain(found),
            release=release,
            lacks=lacks,
            has_musl=musl,
            has_glibc=glibc,
            providers=tuple(self._provider(name, folder, release, listed, exported) for name in providers),
        )

    def _provider(
        self, name: str, folder: str, release: str, listed: frozenset[str], exported: frozenset[tuple[str, str]]
    ) -> Provider:
        file = f"lib{name}-rdmav{release}.so"
        named = [it for it in listed if it.rpartition("/")[2].removeprefix("lib") == name]
        absolute = [f"{it}-rdmav{release}.so" for it in named if it.startswith("/")]
        places = [*absolute, f"{folder}/{file}"]
        path = next((it for it in places if self._fits(it)), "") or self._find(file)
        if not path:
            others = tuple(self._others(name, (folder, *self._folders)))
            return Provider(name=name, is_listed=bool(named), others=others)
        with self._library(path) as elf:
            lacks = tuple(self._lacks(elf))
            missing = sorted(elf.symbols_needed(LIBIBVERBS) - exported)
            if not lacks:
                lacks = tuple(Lack(library=LIBIBVERBS, version=it[1], symbol=_plain(it[0])) for it in missing[:1])
            abi = _supported(elf, _OPS_NAMES.get(name, name))
        return Provider(name=name, path=_plain(path), is_listed=bool(named), abi=abi, lacks=lacks)

    def _others(self, name: str, folders: Collection[str]) -> Iterator[str]:
        pattern = re.compile(rf"lib{re.escape(name)}-rdmav[0-9]{{1,6}}\.so")
        for folder in dict.fromkeys(folders):
            yield from (f"{folder}/{it}" for it in self._root.names(folder) if pattern.fullmatch(it))

    def _lacks(self, elf: Elf) -> Iterator[Lack]:
        """Yield the libraries and symbol versions that the library `elf` needs and the image does not have."""
        wanted = elf.versions_needed()
        for library in elf.needed():
            defined = self._versions(library)
            if defined is None:
                yield Lack(library=_plain(library))
                continue
            for version in sorted(wanted.get(library, frozenset()) - defined):
                yield Lack(library=_plain(library), version=_plain(version))

    def _versions(self, library: str) -> frozenset[str] | None:
        """Return the symbol versions that a library defines; None if the image has no such library for this machine."""
        path = self._find(library)
        if not path:
            return None
        with self._library(path) as elf:
            return elf.versions_defined()

    # Files

    @contextmanager
    def _library(self, path: str) -> Iterator[Elf]:
        """Open a library of the image. Raises OSError, with the library's path, if it cannot be read."""
        with self._root.opened(path) as fd:
            if fd is None:
                raise OSError(errno.ESTALE, "it was removed meanwhile", path)
            try:
                yield Elf(fd)
            except ElfError as error:
                raise OSError(errno.ENOEXEC, str(error), path) from error

    def _find(self, name: str) -> str:
        """Return the path at which the dynamic loader finds a library; "" if there is none. Files for other
        architectures are skipped."""
        return next((path for folder in self._folders if self._fits(path := f"{folder}/{name}")), "")

    def _fits(self, path: str) -> bool:
        with self._root.opened(path) as fd:
            return fd is not None and _architecture(fd) == self._machine

    def _foreign(self) -> Iterator[tuple[str, str]]:
        usual = (f"{top}/{triplet}" for triplet in _TRIPLETS for top in ("/usr/lib", "/lib"))
        for folder in dict.fromkeys((*self._folders, *usual, "/usr/lib32")):
            path = f"{folder}/{LIBIBVERBS}"
            with self._root.opened(path) as fd:
                if fd is not None and (other := _architecture(fd)) not in {"", self._machine}:
                    yield _plain(path), other

    def _library_folders(self, library_path: str) -> Iterator[str]:
        """Yield the folders of libraries in the order in which the dynamic loader searches them."""
        own = (it for it in re.split("[:;]", library_path) if it.startswith("/"))
        yield from islice(chain(own, self._configured("/etc/ld.so.conf", depth=2)), MOST_FOLDERS)
        triplet = f"{self._machine}-linux-gnu"
        yield from (
            f"/lib/{triplet}",
            f"/usr/lib/{triplet}",
            "/lib64",
            "/usr/lib64",
            "/lib",
            "/usr/lib",
            "/usr/local/lib",
        )

    def _configured(self, path: str, depth: int) -> Iterator[str]:
        self._count_configured()
        for line in self._text(path).splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["include"] and depth:
                for pattern in words[1:]:
                    self._count_configured()
                    folder, _, name = (pattern if pattern.startswith("/") else f"/etc/{pattern}").rpartition("/")
                    files = [
                        it
                        for it in self._root.names(folder)
                        if name == it or (name == "*.conf" and it.endswith(".conf"))
                    ]
                    for file in files:
                        yield from self._configured(f"{folder}/{file}", depth - 1)
            elif words and words[0].startswith("/"):
                yield words[0]

    def _count_configured(self) -> None:
        self._configured_left -= 1
        if self._configured_left < 0:
            raise _TooMuchError(f"/etc/ld.so.conf of the image has more than {MOST_CONFIGURED} files and includes")

    def _listed(self, folder: str) -> frozenset[str]:
        """Return the drivers that the configuration files in a libibverbs.d folder name. A `folder` of "" means the
        default one."""
        folder = folder or "/etc/libibverbs.d"
        texts = (self._text(f"{folder}/{name}") for name in self._root.names(folder)[:256])
        return frozenset(name for text in texts for name in _DRIVER.findall(text))

    def _distribution(self) -> tuple[str, str]:
        try:
            text = self._text("/etc/os-release") or self._text("/usr/lib/os-release")
        except OSError:
            text = ""  # the distribution is only shown together with a problem
        said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        words = [_plain(said.get(key, "").strip().strip("\"'")) for key in ("ID", "ID_LIKE", "PRETTY_NAME")]
        like = f"{words[0]} {words[1]}".replace("rhel", "fedora").replace("sles", "suse")
        family = next((it for it in _FAMILIES if it in like), words[0])
        return family, words[2] or words[0]

    def _text(self, path: str) -> str:
        return self._root.read(path, _TEXT_BYTES).decode(errors="replace")


def _text_around(data: bytes, part: bytes) -> str:
    """Return the NUL-terminated text in `data` that contains `part`; "" if there is none, or if it is too long."""
    place = data.find(part)
    if place < 0:
        return ""
    first, end = (
        data.rfind(b"\0", max(0, place - LONGEST_PATH), place) + 1,
        data.find(b"\0", place, place + LONGEST_PATH),
    )
    return data[first:end].decode(errors="replace") if first and end > 0 else ""


def _architecture(fd: int) -> str:
    """Return the architecture for which the library `fd` is built; "" if the file is not a library."""
    try:
        elf = Elf(fd)
    except ElfError:
        return ""
    return _MACHINES.get(elf.machine, f"machine {elf.machine}")


def _supported(elf: Elf, name: str) -> tuple[int, int] | None:
    """Return the first and last ABI version of the kernel that a provider supports; None if they cannot be read.

    The two numbers follow a pointer to the provider's name in the structure `verbs_device_ops`.
    """
    pairs = {pair for pair in elf.words_after(name) if pair[0] <= pair[1] <= _MOST_ABI}
    return pairs.pop() if len(pairs) == 1 else None


def _plain(text: str) -> str:
    """Return a text from the image, cut to 200 characters and with unprintable characters replaced."""
    return "".join(it if it.isprintable() else "?" for it in text[:200])

"""Roots with the RDMA libraries of Debian's releases, as images have them: packages of the machine's mirror, unpacked.

`python -m tests.rig.debian_roots` fetches the packages once, into the cache: tests run without a network. Nothing of
them is run by who makes them.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deploy import aptsources
from tests.rig import cache

FOLDER = cache.CACHE / "debian-roots"
SUITES = ("bullseye", "bookworm", "trixie")
VERBS, PROVIDERS, LIBC, MUSL, BASE = "libibverbs1", "ibverbs-providers", "libc6", "musl", "base-files"
NETLINK = ("libnl-3-200", "libnl-route-3-200")
PACKAGES = (VERBS, PROVIDERS, LIBC, MUSL, BASE, *NETLINK)


class FetchError(Exception):
    """What could not be fetched, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A root that is put together of packages: `packages` of one suite, and `others` of another one."""

    suite: str
    packages: tuple[str, ...]
    others: Mapping[str, str] = field(default_factory=dict)
    """Suites by package."""


def whole(suite: str) -> Root:
    """All that a program for RDMA needs."""
    return Root(suite=suite, packages=(VERBS, PROVIDERS, LIBC, BASE, *NETLINK))


ROOTS = {
    "Debian 11": whole("bullseye"),
    "Debian 12": whole("bookworm"),
    "Debian 13": whole("trixie"),
    "without libibverbs": Root(suite="bookworm", packages=(LIBC, BASE)),
    "with musl": Root(suite="bookworm", packages=(MUSL, BASE)),
    "with musl and libibverbs for glibc": Root(suite="bookworm", packages=(MUSL, BASE, VERBS, PROVIDERS, *NETLINK)),
    "12 with providers of 11": Root(
        suite="bookworm", packages=(VERBS, LIBC, BASE, *NETLINK), others={PROVIDERS: "bullseye"}
    ),
    "12 with providers of 13": Root(
        suite="bookworm", packages=(VERBS, LIBC, BASE, *NETLINK), others={PROVIDERS: "trixie"}
    ),
    "13 with providers of 12": Root(
        suite="trixie", packages=(VERBS, LIBC, BASE, *NETLINK), others={PROVIDERS: "bookworm"}
    ),
    "without what libibverbs needs": Root(suite="trixie", packages=(VERBS, PROVIDERS, LIBC, BASE)),
}


def make(root: Root, target: Path) -> Path:
    """Unpack a root there. Raises FetchError where packages of it are not in the cache."""
    target.mkdir(parents=True)
    for package, suite in {**dict.fromkeys(root.packages, root.suite), **root.others}.items():
        folder = FOLDER / suite
        if not folder.is_dir():
            raise FetchError(f"the packages of {suite} are not in the cache; run `python -m tests.rig.debian_roots`")
        _unpack(folder / f"{package}.deb", target)
    return target


def main() -> int:
    """Fetch the packages of all suites. What cannot be fetched is said: the tests that need it are skipped."""
    for suite in SUITES:
        try:
            fetch(suite)
        except FetchError as error:
            print(f"roots: {error}", flush=True)
    return 0


def fetch(suite: str) -> None:
    """Have the packages of a suite in the cache. Raises FetchError."""
    folder = FOLDER / suite
    FOLDER.mkdir(parents=True, exist_ok=True)
    with _lock():
        if not folder.is_dir():
            scratch = FOLDER / f"{suite}.new"
            shutil.rmtree(scratch, ignore_errors=True)
            _fetch(suite, scratch)
            for leftover in ("lists", "cache"):
                shutil.rmtree(scratch / leftover)
            scratch.rename(folder)


def _fetch(suite: str, scratch: Path) -> None:
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    archive = aptsources.main_archive(
        aptsources.read_sources(Path("/etc/apt")), release.get("VERSION_CODENAME", "").strip('"')
    )
    if archive is None:
        raise FetchError("no apt source of this machine is Debian's archive")
    for name in ("lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    sources = scratch / "suite.sources"
    sources.write_text(archive.stanza((suite,)))
    (scratch / "status").write_text("")  # what this machine has installed is nobody's candidate
    options = aptsources.options_beside(sources, "amd64") | {
        "Dir::State::status": str(scratch / "status"),
        "Acquire::Check-Valid-Until": "false",
    }
    flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    for words in (("update",), ("download", *PACKAGES)):
        done = subprocess.run(
            ["apt-get", "-q", *flags, *words], cwd=scratch, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise FetchError(f"this machine's mirror does not serve {suite}: {done.stderr.strip()}")
    for package in PACKAGES:
        (found,) = scratch.glob(f"{package}_*.deb")
        found.rename(scratch / f"{package}.deb")


def _unpack(package: Path, target: Path) -> None:
    """Unpack a package. A root whose /lib is a link gets what an older package has in /lib below /usr, as dpkg does."""
    with_links = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
    command = ["tar", "--extract", "--keep-directory-symlink", "--no-same-owner", "--directory", str(target)]
    subprocess.run(command, input=with_links, check=True)


@contextmanager
def _lock() -> Iterator[None]:
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())

"""Debian 13's packages by the hashes of debs.lock, fetched from this machine's own mirror."""

import hashlib
import platform
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.aptsources import Source, main_archive, options_beside, read_sources, security_archive
from deploy.image.architecture import Architecture
from deploy.image.steps import CACHE, LOCKS, ImageError, run

LOCK = LOCKS / "debs.lock"
PYTHON = (
    *("python3.13-minimal", "libpython3.13-minimal", "libpython3.13-stdlib", "libc6", "libssl3t64", "libffi8"),
    *("libexpat1", "zlib1g", "liblzma5", "libbz2-1.0", "libuuid1", "libzstd1", "libsqlite3-0"),
)
"""The interpreter, and the libraries of its own modules."""
WHEELS = ("libstdc++6", "libgcc-s1", "ca-certificates")
"""What wheels and their TLS need."""
VERBS = (
    *("python3-pyverbs", "ibverbs-providers", "libibverbs1", "librdmacm1t64", "libibumad3", "libnl-3-200"),
    "libnl-route-3-200",
)
"""What asks devices for their capacity (docs/adr/0030)."""
PACKAGES = (*PYTHON, *WHEELS, *VERBS)
EMULATOR = "qemu-user"
"""Not in the image: its tests run programs of other architectures with it."""
_SECURITY_POOL = "pool/updates/"
_RENEW = "python -m deploy.image --renew"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deb:
    """One line of debs.lock."""

    name: str
    version: str
    architecture: str
    sha256: str
    path: str
    """Below the archive's address."""

    @property
    def file(self) -> str:
        """The name in the cache."""
        return self.path.rpartition("/")[2]


def read_lock(text: str) -> tuple[Deb, ...]:
    """Read the text of debs.lock."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return tuple(
        Deb(name=name, version=version, architecture=architecture, sha256=sha256, path=path)
        for name, version, architecture, sha256, path in rows
    )


def locked(names: Iterable[str], architecture: Architecture) -> tuple[Deb, ...]:
    """Return the packages of these names for an architecture. Raise ImageError for one that the lock has not."""
    fitting = [it for it in read_lock(LOCK.read_text()) if it.architecture in (architecture.name, "all")]
    by_name = {it.name: it for it in fitting}
    if missing := [name for name in names if name not in by_name]:
        raise ImageError(f"debs.lock lacks {', '.join(missing)} for {architecture.name}. Next: {_RENEW}")
    return tuple(by_name[name] for name in names)


def fetch(debs: Iterable[Deb]) -> tuple[Path, ...]:
    """Return the packages' files in the cache; fetch those that are not there. Raise ImageError."""
    folder = CACHE / "debs"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {folder / deb.file: deb for deb in debs}
    missing = {path: deb for path, deb in paths.items() if not _is(path, deb.sha256)}
    if missing:
        wanted = [(f"{_archive(deb)}/{deb.path}", str(path), f"SHA256:{deb.sha256}") for path, deb in missing.items()]
        helper = ["/usr/lib/apt/apt-helper", "-o", "Acquire::Retries=3", "-o", "APT::Sandbox::User=root"]
        command = [*helper, "download-file", *(word for row in wanted for word in row)]
        hint = f"if the mirror has newer versions only: {_RENEW}"
        run(command, f"fetch {', '.join(deb.name for deb in missing.values())}", hint)
    return tuple(paths)


def unpack(deb: Path, place: Callable[[str], Path | None]) -> None:
    """Unpack what `place` has a path for; it is asked by the name in the package. Links that lead out are left."""
    command = ["dpkg-deb", "--fsys-tarfile", str(deb)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        for member in archive:
            target = place(member.name.removeprefix("./"))
            if target is None or member.isdir() or (member.issym() and member.linkname.startswith("/")):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(archive, member, target)
    if process.returncode != 0:
        raise ImageError(f"dpkg-deb cannot read {deb.name}. Next: delete {deb} and run it again.")


def describe(deb: Path) -> str:
    """Return the package's own record, as dpkg keeps it of an installed package."""
    return run(["dpkg-deb", "--field", str(deb)], f"read {deb.name}", f"delete {deb} and run it again.")


def renew(architectures: Iterable[Architecture]) -> str:
    """Return the text of a lock with the newest packages that Debian 13 has. Raise ImageError."""
    found: set[Deb] = set()
    for architecture in architectures:
        with TemporaryDirectory() as folder:
            found |= {_deb(line) for line in _Apt(Path(folder), architecture).addresses((*PACKAGES, EMULATOR))}
    debs = sorted(found, key=lambda it: (it.architecture, it.name))
    lines = (f"{it.name} {it.version} {it.architecture} {it.sha256} {it.path}" for it in debs)
    return "\n".join((f"# Debian 13's packages in the image. `{_RENEW}` writes this file.", *lines, ""))


class _Apt:
    """apt with lists of its own: it reads this machine's keys and proxies, and nothing else of its state."""

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        (folder / "lists/partial").mkdir(parents=True)
        (folder / "cache/archives/partial").mkdir(parents=True)
        main, security = _archives()
        stanzas = [main.stanza(("trixie", "trixie-updates"))]
        stanzas += [security.stanza(("trixie-security",))] if security is not None else []
        (folder / "image.sources").write_text("\n".join(stanzas))
        options = options_beside(folder / "image.sources", architecture.name) | {
            "Dir::State::status": "/dev/null",
            "APT::Architectures": architecture.name,
        }
        self._command = ["apt-get", "-q", *(word for it in options.items() for word in ("-o", "=".join(it)))]
        run([*self._command, "update"], "read Debian 13's lists of packages", "check the mirror in /etc/apt.")

    def addresses(self, packages: Iterable[str]) -> list[str]:
        """Return apt's line for each package: address, file, size and hash."""
        command = [*self._command, "--print-uris", "download", *packages]
        said = run(command, "find the packages", "compare deploy/image/debs.py with what Debian 13 has.")
        return [line for line in said.splitlines() if line.startswith("'")]


def _deb(line: str) -> Deb:
    address, file, _, digest = line.split()
    name, version, architecture = file.removesuffix(".deb").split("_")
    _, found, below = address.strip("'").partition("/pool/")
    kind, _, sha256 = digest.partition(":")
    if not found or kind != "SHA256":
        raise ImageError(f"apt says {line}, which has no pool or no SHA256. Next: see /etc/apt.")
    return Deb(
        name=name, version=version.replace("%3a", ":"), architecture=architecture, sha256=sha256, path=f"pool/{below}"
    )


def _archives() -> tuple[Source, Source | None]:
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    sources = read_sources(Path("/etc/apt"))
    main = main_archive(sources, codename)
    if main is None:
        raise ImageError(
            f"no apt source of this machine names {codename or 'its release'} with the component main. "
            "Next: add Debian's own archive to /etc/apt/sources.list.d."
        )
    return main, security_archive(sources, codename)


def _archive(deb: Deb) -> str:
    main, security = _archives()
    if not deb.path.startswith(_SECURITY_POOL):
        return main.uris[0].rstrip("/")
    if security is None:
        raise ImageError(f"{deb.name} is a security update, and no apt source of this machine has these. Next: add it.")
    return security.uris[0].rstrip("/")


def _is(path: Path, sha256: str) -> bool:
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.issym():
        target.symlink_to(member.linkname)
        return
    content = archive.extractfile(member)
    if content is None:
        raise ImageError(f"{member.name} is neither a file nor a link. Next: leave it out in deploy/image/layout.py.")
    target.write_bytes(content.read())
    target.chmod(member.mode & 0o755)

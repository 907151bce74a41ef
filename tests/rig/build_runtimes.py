"""Builds runtimes that Debian does not have: `python -m tests.rig.build_runtimes [NAME...]`; all of them by default.

Their sources come from the Go module proxy; CRI-O's monitor, conmon, and libseccomp, which it is linked with, are
Debian's packages, unpacked and not installed. CRI-O needs gcc and make. It takes minutes, once: what was built is kept.
`make test` and `make cluster` use containerd 2.3, the rotation one of the others at a time (tests/rotation.py).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rig import cache
from tests.rig.go import GoError, ensure_go


class BuildError(Exception):
    """What failed, with the last words of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A Go module of one version, and the programs in it that a runtime is made of."""

    module: str
    version: str
    packages: tuple[str, ...]
    tags: str
    version_variable: str = ""


_CONTAINERD = "github.com/containerd/containerd/v2"
_CRIO = "github.com/cri-o/cri-o"
# Without what needs C libraries.
_CONTAINERD_TAGS = "no_btrfs no_devmapper no_zfs"
_CRIO_TAGS = "containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs seccomp"


def _containerd(version: str) -> Source:
    return Source(
        module=_CONTAINERD,
        version=version,
        packages=("./cmd/containerd", "./cmd/containerd-shim-runc-v2"),
        tags=_CONTAINERD_TAGS,
        version_variable=f"{_CONTAINERD}/version.Version",
    )


SOURCES = {
    "containerd-2.0": _containerd("v2.0.14"),
    "containerd-2.3": _containerd("v2.3.7"),
    "containerd-2.4": _containerd("v2.4.2"),
    "cri-o-1.36": Source(module=_CRIO, version="v1.36.3", packages=("./cmd/crio", "./test/copyimg"), tags=_CRIO_TAGS),
}


def main(names: Sequence[str] = ()) -> int:
    """Builds what is missing of these, or of all, or says in one sentence why it cannot. Debian's are the set-up's."""
    fetched = {release.name for release in cache.FETCHED}
    if unknown := [name for name in names if name not in SOURCES and name not in fetched]:
        print(f"runtimes: no {unknown[0]}. Next: name some of {', '.join(SOURCES)}.", file=sys.stderr)
        return 2
    try:
        for name in SOURCES:
            if not names or name in names:
                ensure(cache.Release(name, cache.BUILT_RUNTIMES / name))
    except BuildError as failure:
        print(f"runtimes: {failure}", file=sys.stderr)
        return 1
    return 0


def ensure(release: cache.Release) -> None:
    """Builds a runtime if it is not there. Raises BuildError."""
    if release.is_complete:
        return
    source = SOURCES[release.name]
    print(f"runtimes: building {release.name} ({source.version}) once, into {release.folder}: minutes", flush=True)
    build(release, source)


def build(release: cache.Release, source: Source) -> None:
    """Builds one runtime into its folder. Raises BuildError."""
    try:
        ensure_go()
    except GoError as error:
        raise BuildError(str(error)) from error
    release.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="runtime-", dir=release.folder) as name:
        checkout = Path(name) / "source"
        fetched = json.loads(_run(["go", "mod", "download", "-json", f"{source.module}@{source.version}"], Path(name)))
        shutil.copytree(fetched["Dir"], checkout, copy_function=shutil.copyfile)
        environment: Mapping[str, str] = {"CGO_ENABLED": "0"}
        if release.is_crio:
            _build_pinns(checkout, release.folder)
            shutil.copy(_unpack("conmon", Path(name)) / "usr/bin/conmon", release.folder)
            environment = _linking(_unpack("libseccomp-dev", Path(name)))
        variable = source.version_variable
        link = "-s -w" + (f" -X {variable}={source.version}" if variable else "")
        flags = ["-mod=mod", "-buildvcs=false", "-tags", source.tags, "-ldflags", link, "-o", f"{release.folder}/"]
        _run(["go", "build", *flags, *source.packages], checkout, environment)


def _build_pinns(checkout: Path, target: Path) -> None:
    _run(["make", "-C", "pinns"], checkout)
    shutil.copy(checkout / "bin/pinns", target)


def _unpack(package: str, work: Path) -> Path:
    """Unpacks one of Debian's packages into a folder of its name, and returns that."""
    _run(["apt-get", "download", package], work)
    (archive,) = work.glob(f"{package}_*.deb")
    _run(["dpkg", "-x", str(archive), str(work / package)], work)
    return work / package


def _linking(package: Path) -> Mapping[str, str]:
    """What has cgo find libseccomp in its unpacked -dev package, without pkg-config (which knows installed ones)."""
    (library,) = package.glob("usr/lib/*/libseccomp.a")
    return {
        "CGO_CFLAGS": f"-I{package}/usr/include",
        "CGO_LDFLAGS": f"-L{library.parent} -lseccomp",
        "PKG_CONFIG": "true",
    }


def _run(command: Sequence[str], where: Path, environment: Mapping[str, str] | None = None) -> str:
    env = os.environ | (environment or {})
    try:
        done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        raise BuildError(f"{command[0]} is not on this machine. Next: install it.") from missing
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()  # `go mod download -json` says it on stdout
        raise BuildError(f"{' '.join(command)} failed: {' / '.join(said[-3:])}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Builds runtimes that Debian does not have: `python -m tests.rig.build_runtimes [NAME...]`, for `make runtimes`.

Their sources come from the Go module proxy; CRI-O's monitor, conmon, is Debian's package, unpacked and not installed.
It needs gcc and make, and takes minutes. What was built is kept. `make test` uses none of it, `make check` one
on three days of six (tests/rotation.py).
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
_CRIO_TAGS = "containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs"


def _containerd(version: str) -> Source:
    return Source(
        module=_CONTAINERD,
        version=version,
        packages=("./cmd/containerd", "./cmd/containerd-shim-runc-v2"),
        tags=_CONTAINERD_TAGS,
        version_variable=f"{_CONTAINERD}/version.Version",
    )


SOURCES = {
    "containerd-2.2": _containerd("v2.2.9"),
    "containerd-2.3": _containerd("v2.3.7"),
    "cri-o-1.34": Source(module=_CRIO, version="v1.34.0", packages=("./cmd/crio", "./test/copyimg"), tags=_CRIO_TAGS),
}


def main(names: Sequence[str] = ()) -> int:
    """Builds what is missing of these, or of all, or says in one sentence why it cannot."""
    if unknown := [name for name in names if name not in SOURCES]:
        print(f"runtimes: no {unknown[0]}. Next: name some of {', '.join(SOURCES)}.", file=sys.stderr)
        return 2
    complete = {release.name for release in cache.built()}
    try:
        for name, source in SOURCES.items():
            if name not in complete and (not names or name in names):
                print(f"runtimes: building {name} ({source.version})", flush=True)
                build(cache.Release(name, cache.BUILT_RUNTIMES / name), source)
    except BuildError as failure:
        print(f"runtimes: {failure}", file=sys.stderr)
        return 1
    return 0


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
        if release.is_crio:
            _build_pinns(checkout, release.folder)
            _unpack_conmon(Path(name), release.folder)
        variable = source.version_variable
        link = "-s -w" + (f" -X {variable}={source.version}" if variable else "")
        go = ["go", "build", "-buildvcs=false", "-tags", source.tags, "-ldflags", link, "-o", f"{release.folder}/"]
        _run([*go, *source.packages], checkout, {} if release.is_crio else {"CGO_ENABLED": "0"})


def _build_pinns(checkout: Path, target: Path) -> None:
    _run(["make", "-C", "pinns"], checkout)
    shutil.copy(checkout / "bin/pinns", target)


def _unpack_conmon(work: Path, target: Path) -> None:
    _run(["apt-get", "download", "conmon"], work)
    (package,) = work.glob("conmon_*.deb")
    _run(["dpkg", "-x", str(package), str(work / "conmon")], work)
    shutil.copy(work / "conmon/usr/bin/conmon", target)


def _run(command: Sequence[str], where: Path, environment: Mapping[str, str] | None = None) -> str:
    env = os.environ | (environment or {})
    try:
        done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        raise BuildError(f"{command[0]} is not on this machine. Next: install it.") from missing
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed: {' / '.join(done.stderr.strip().splitlines()[-3:])}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""An image unpacked into a folder, and commands that see nothing but it."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.image import debs, layout
from deploy.image.architecture import Architecture, of_this_machine

PYTHON = f"/{layout.PYTHON}"
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The folder. `config` is what the image says of itself."""

    folder: Path
    config: Mapping[str, Any]
    emulator: tuple[str, ...]
    """In front of each command, where this machine's processor is another one."""

    def run(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of the image with the image's environment and a /proc of its own. An interpreter has to be
        named: the kernel would not start a script's first line by the emulator."""
        environment = dict(it.split("=", 1) for it in self.config["config"]["Env"])
        mounts = (f"--mount-proc={self.folder}/proc", "chroot", str(self.folder))
        return subprocess.run(
            [*_NAMESPACES, *mounts, *self.emulator, *command],
            input=given,
            env={**environment, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )


def unpack(archive: Path, folder: Path, architecture: Architecture) -> Root:
    """Unpack an archive's layers, as a runtime does."""
    folder.mkdir()
    with tarfile.open(archive) as outer:
        manifest = read_json(outer, manifest_of(outer, architecture))
        for layer in manifest["layers"]:
            packed = outer.extractfile(_path(layer))
            assert packed is not None
            how = "-xz" if layer["mediaType"].endswith("gzip") else "-x"
            subprocess.run(["tar", how, "-C", str(folder)], input=packed.read(), check=True)
        config = read_json(outer, manifest["config"])
    assert config["architecture"] == architecture.name
    is_foreign = architecture != of_this_machine()
    return Root(folder=folder, config=config, emulator=_put_emulator(folder, architecture) if is_foreign else ())


def manifest_of(archive: tarfile.TarFile, architecture: Architecture) -> Mapping[str, Any]:
    """Return what leads to an image: by it runtimes know all its bytes."""
    index = archive.extractfile("index.json")
    assert index is not None
    (named,) = json.load(index)["manifests"]
    if named["mediaType"] != "application/vnd.oci.image.index.v1+json":
        return dict(named)
    entries = read_json(archive, named)["manifests"]
    (found,) = (it for it in entries if it["platform"] == {"architecture": architecture.name, "os": "linux"})
    return dict(found)


def read_json(archive: tarfile.TarFile, descriptor: Mapping[str, Any]) -> Any:
    """Read what a descriptor leads to."""
    content = archive.extractfile(_path(descriptor))
    assert content is not None
    return json.load(content)


def _path(descriptor: Mapping[str, Any]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _put_emulator(folder: Path, architecture: Architecture) -> tuple[str, ...]:
    name = f"qemu-{architecture.machine}"
    (deb,) = debs.fetch(debs.locked([debs.EMULATOR], of_this_machine()))
    debs.unpack(deb, lambda it: folder / name if it == f"usr/bin/{name}" else None)
    return (f"/{name}",)

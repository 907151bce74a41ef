"""The Dockerfile makes the same image as `make image`: podman builds it, with the code of buildah and no registry."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.image.architecture import Architecture
from deploy.image.steps import CACHE, PROJECT
from tests.image.root import Root, unpack
from tests.oci import become_host
from tests.oci.podman import POLICY
from tests.oci.roots import TRIXIE, ensure_root

STORAGE = '[storage]\ndriver = "overlay"\nrunroot = "/run/storage"\ngraphroot = "/disk"\n'
IN_MEMORY = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
BASE = "docker.io/library/debian:trixie-slim"
BUILD = (
    *("podman", "build", "--pull=never", "--isolation=chroot", "--network=host", "--file=/src/Dockerfile"),
    *("--ulimit=nofile=20000:20000", "--ulimit=nproc=90000:90000"),  # else it wants more than who tests may have
    "--volume=/cache:/src/.cache/image",  # what was fetched already
)


class Builder:
    """Debian 13 with podman: the folder `work` is at /work there, and all else is gone afterwards."""

    def __init__(self, process: int) -> None:
        self._process = process

    def __call__(self, *command: str) -> None:
        """Run a command there, to its end."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TMPDIR": "/disk"}
        words = ["nsenter", f"--mount=/proc/{self._process}/ns/mnt", *command]
        done = subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr)[-3000:]}"

    def write(self, path: str, text: str) -> None:
        """Write a file there."""
        there = Path(f"/proc/{self._process}/root{path}")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text)


@contextmanager
def builder(work: Path) -> Iterator[Builder]:
    """Have a builder until the end."""
    disk, nodes = work / "disk", work / "nodes"
    for folder in (disk, nodes):
        folder.mkdir()
    shared = {PROJECT: "/src", work / "cache": "/cache", work: "/made", disk: "/disk"}
    command = [
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", IN_MEMORY, str(disk)),
        *(sys.executable, "-IS", str(become_host.__file__), str(ensure_root(TRIXIE)), str(disk), str(nodes)),
        *(f"{folder}={place}" for folder, place in shared.items()),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            made = Builder(process.pid)
            made.write("/etc/containers/storage.conf", STORAGE)
            made.write("/etc/containers/policy.json", POLICY)
            yield made
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def built(architecture: Architecture, root: Root, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """What the Dockerfile makes, unpacked. Its base is Debian 13 as the builder has it, since there is no registry."""
    labels = root.config["config"]["Labels"]
    arguments = {it: labels[f"org.opencontainers.image.{it.lower()}"] for it in ("VERSION", "REVISION")}
    work = tmp_path_factory.mktemp("dockerfile")
    (work / "cache").mkdir()
    for fetched in (CACHE / "debs", *CACHE.glob("wheels-*"), *CACHE.glob("tools-*")):
        shutil.copytree(fetched, work / "cache" / fetched.name)
    subprocess.run(["tar", "-C", str(ensure_root(TRIXIE)), "-cf", str(work / "base.tar"), "."], check=True)
    with builder(work) as run:
        run("podman", "import", "/made/base.tar", BASE)
        words = (f"--build-arg={name}={value}" for name, value in arguments.items())
        run(*BUILD, f"--platform=linux/{architecture.name}", *words, "--tag=localhost/built", "/src")
        run("podman", "save", "--format=oci-archive", "--output=/made/built.tar", "localhost/built")
    return unpack(work / "built.tar", work / "root", architecture)


def test_it_has_the_same_files(built: Root, root: Root) -> None:
    assert files(built.folder) == files(root.folder)


def test_it_says_the_same_of_itself(built: Root, root: Root) -> None:
    ours, theirs = (it.config["config"] for it in (root, built))
    theirs["Labels"].pop("io.buildah.version", None)
    assert {name: theirs[name] for name in ours} == ours


def files(root: Path) -> dict[str, tuple[str, bytes]]:
    """Everything below a folder, but for what other tests leave there."""
    return {
        str(path.relative_to(root)): (stat.filemode(path.lstat().st_mode), content(path))
        for path in root.rglob("*")
        if path.relative_to(root).parts[0] not in ("tmp", "host", "proc") and not path.name.startswith("qemu-")
    }


def content(path: Path) -> bytes:
    """A file's bytes, or a link's text."""
    if path.is_symlink():
        return os.fsencode(path.readlink())
    return path.read_bytes() if path.is_file() else b""

"""The image's folder, copied by `nri-rdma install host` to a root that has nothing else: its programs run there."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from deploy.image import layout
from nri_rdma import __version__
from tests.image.root import Root
from tests.image.test_image import COMMAND, CONTAINER
from tests.unit.hooks.ended import Ended

PATH = "/var/lib/nri-rdma"
PYTHON, PROGRAM, HOOK = (f"{PATH}/bin/{name}" for name in ("python3", "nri-rdma", "nri-rdma-hook"))
ASKING = {"rdma.noderesource.dev": "[{match: {device: mlx5_2}}]"}


def place(root: Root, host: Root) -> str:
    """Have the image's folder copied to the host's; return what the command says."""
    return run_in_image(root, host, "install")


def run_in_image(root: Root, host: Root, verb: str) -> str:
    """Have a program of the image, which finds the host's folder below its own root, install or uninstall."""
    mounted_at = f"/{host.folder.relative_to(root.folder)}{PATH}"
    done = root.run(*COMMAND, verb, "host", "--mounted-at", mounted_at, "--host-dir", PATH)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def host(root: Root) -> Root:
    """A root with the folder and no Python, shell or library of its own."""
    folder = root.folder / "tmp/node"
    for name in ("proc", "tmp", "run", "sys/class", "dev", PATH.removeprefix("/")):
        (folder / name).mkdir(parents=True)
    for emulator in root.emulator:
        shutil.copy2(root.folder / emulator.removeprefix("/"), folder)
    config = {**root.config, "config": {**root.config["config"], "Env": ["PATH=/"]}}
    host = replace(root, folder=folder, config=config)
    said = place(root, host)
    files = [it for it in (root.folder / layout.FOLDER).rglob("*") if it.is_symlink() or it.is_file()]
    assert said == f"{PATH}/bin of the host has the programs of this release. Files written: {len(files)}.\n"
    return host


def started(host: Root, *command: str) -> tuple[str, ...]:
    """The command as a host starts it: by its first line, or by the emulator, which knows none."""
    return (PYTHON, "-I", *command) if host.emulator else command


def test_the_command_runs_there(host: Root) -> None:
    done = host.run(*started(host, PROGRAM, "--version"))
    assert done.stderr == ""
    assert done.stdout.startswith(f"nri-rdma {__version__} (commit ")


def test_the_hook_runs_there(host: Root) -> None:
    bundle = host.folder / "tmp/bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({"process": {"env": []}, "linux": {"devices": []}}))
    states = ({"id": "x", "bundle": "/tmp/bundle", "annotations": CONTAINER | more} for more in ({}, ASKING))
    plain, asking = (host.run(*started(host, HOOK, "verify"), given=json.dumps(state)) for state in states)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert Ended(code=asking.returncode, error=asking.stderr).refused_with == "DAEMON-ABSENT"


def test_the_hook_compiles_nothing_there(host: Root, root: Root) -> None:
    host.run(*started(host, HOOK, "verify"), given="{}")
    there = {it.relative_to(host.folder / PATH[1:] / "a") for it in (host.folder / PATH[1:] / "a").rglob("*")}
    assert there == {it.relative_to(root.folder / layout.FOLDER) for it in (root.folder / layout.FOLDER).rglob("*")}


def test_the_same_release_writes_nothing(host: Root, root: Root) -> None:
    assert place(root, host).endswith(" Files written: 0.\n")


@pytest.fixture
def daemon(host: Root) -> Iterator[subprocess.Popen[str]]:
    """A daemon that runs from the folder."""
    if host.emulator:
        pytest.skip("the emulator's sockets have no SO_NETNS_COOKIE, which the daemon asks for")
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={host.folder}/proc")
    command = [*namespaces, "chroot", str(host.folder), *host.emulator, *started(host, PROGRAM, "run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        first = running.stderr.readline()
        assert 'info started devices=0 control="/run/nri-rdma/control.sock"' in first, first
        yield running
        running.kill()


def test_a_daemon_that_runs_there_serves_on_while_the_next_release_comes(
    host: Root, root: Root, daemon: subprocess.Popen[str]
) -> None:
    extra = root.folder / layout.BIN / "extra"
    try:
        extra.touch()
        place(root, host)
        assert (host.folder / PATH[1:] / "bin/extra").exists()
    finally:
        extra.unlink()
    assert place(root, host).endswith(" Files written: 0.\n")  # the way back
    assert not (host.folder / PATH[1:] / "bin/extra").exists()
    assert daemon.poll() is None
    assert host.run(*started(host, PROGRAM, "status")).returncode == 0


def test_a_host_without_it_is_as_before(host: Root, root: Root) -> None:
    run_in_image(root, host, "uninstall")
    assert list((host.folder / PATH[1:]).iterdir()) == []

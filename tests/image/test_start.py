"""A runtime takes the archive, without a registry, and starts the image."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.image import layout
from deploy.image.__main__ import NAME, read_revision
from deploy.image.architecture import Architecture, of_this_machine
from nri_rdma import __version__
from tests.rig import cache
from tests.rig.containerd import Containerd

PROGRAM = f"/{layout.BIN}/nri-rdma"


@pytest.fixture(scope="module")
def containerd(
    archive: Path, architecture: Architecture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """Debian's containerd with the image."""
    if architecture != of_this_machine():
        pytest.skip(f"this machine's kernel does not start programs of {architecture.name}")
    with Containerd(tmp_path_factory.mktemp("containerd"), release=cache.CONTAINERD_2_1) as running:
        running.import_image(archive)
        yield running


def command_of(containerd: Containerd, *command: str) -> list[str]:
    """Return what runs the image on a root that is not writable; without a command: its own."""
    to_cri = (str(cache.CTR), "-a", str(containerd.cri_address), "-n", "k8s.io")
    runc = ("--runc-binary", str(cache.RUNC), "--runc-root", str(containerd.run / "runc"))
    return [*to_cri, "run", "--rm", "--read-only", *runc, NAME, "image-test", *command]


def test_a_container_of_it_says_its_commit(containerd: Containerd) -> None:
    command = command_of(containerd, PROGRAM, "--version")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.stdout) == ("", f"nri-rdma {__version__} (commit {read_revision()})\n")


def test_its_own_command_is_the_daemon_which_sigterm_ends(containerd: Containerd) -> None:
    with subprocess.Popen(command_of(containerd), stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        began = 'info started devices=0 control="/run/nri-rdma/control.sock"'
        before = []
        for line in running.stderr:  # earlier a process 1 has no handler, and the kernel keeps SIGTERM from it
            before.append(line)
            if began in line:
                break
        running.terminate()  # ctr hands it on
        rest = running.communicate(timeout=30)[1]
    assert began in before[-1], "".join(before) + rest
    assert running.returncode == 0, rest

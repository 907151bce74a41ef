"""`nri-rdma install podman` and `install docker` as a user runs them; what they write on a host is for tests/oci."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.unit.commands.cli.program import assert_one_error, nri_rdma

DROP_IN = "/etc/containers/containers.conf.d/90-nri-rdma.conf"
FOLDER = "/usr/local/lib/nri-rdma/podman-hooks.d"


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    """A PATH with a podman that knows its version and nothing else."""
    program = tmp_path / "podman"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "podman version 5.4.2"\n')
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_a_dry_run_shows_every_file_and_writes_none(path: dict[str, str]) -> None:
    before = Path(DROP_IN).exists()
    done = nri_rdma("install", "podman", "--dry-run", columns=200, environment=path)
    assert done.returncode == 0, done.stderr
    stages = ("precreate", "createRuntime", "poststop")
    hook = [f"/usr/local/lib/nri-rdma/{name}" for name in ("nri_rdma_oci_hook.py", "nri-rdma-oci-hook")]
    files = [*hook, *(f"{FOLDER}/nri-rdma-{it}.json" for it in stages), DROP_IN]
    assert [line[4:] for line in done.stdout.splitlines() if line.startswith("+++ ")] == files
    assert f'+hooks_dir = ["{FOLDER}", {{append=true}}]' in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "Nothing was changed: this is what would be written."
    assert Path(DROP_IN).exists() is before


def test_settings_of_the_daemon_are_in_the_hooks(path: dict[str, str], tmp_path: Path) -> None:
    flags = ("--annotation-prefix", "rdma.example", "--state-dir", tmp_path / "state")
    done = nri_rdma("install", "podman", "--dry-run", *flags, columns=400, environment=path)
    assert f"prepare --annotation-prefix rdma.example --socket {tmp_path}/state/oci.sock" in done.stdout
    assert "(for containers with rdma.example: precreate runs " in done.stdout


def test_the_nodes_devices_are_written_as_cdi_devices_and_nothing_for_a_machine_is_shown(
    path: dict[str, str], eight: Path, tmp_path: Path
) -> None:
    cdi = tmp_path / "cdi"
    flags = ("--dry-run", "--sysfs-root", eight, "--dev-root", tmp_path, "--cdi-dirs", cdi, "--allow-default-pool")
    done = nri_rdma("install", "podman", *flags, columns=400, environment=path)
    lines = done.stdout.splitlines()
    names = ", ".join(f"mlx5_{number}" for number in range(8))
    at = lines.index(f"+++ {cdi}/nri-rdma-podman.json")
    assert lines[at + 1].startswith(f"(for `podman run --device rdma.noderesource.dev/nic=NAME`: {names}, all, ")
    assert len(lines) < 35
    assert not cdi.exists()


def test_cdi_devices_of_the_user_stay_and_are_named(path: dict[str, str], eight: Path, tmp_path: Path) -> None:
    flags = ("--sysfs-root", eight, "--dev-root", tmp_path, "--allow-default-pool")
    assert nri_rdma("cdi", "generate", "--hooks", "--output", tmp_path / "cdi", *flags).returncode == 0
    more = ("--dry-run", "--cdi-dirs", tmp_path / "cdi")
    done = nri_rdma("install", "podman", *flags, *more, columns=400, environment=path)
    mine = tmp_path / "cdi/rdma.noderesource.dev-nic.json"
    assert done.stderr == f"The CDI devices are those of {mine}, which stays as it is.\n"
    assert "nri-rdma-podman.json" not in done.stdout


def test_devices_that_go_are_named_and_where_there_are_none_the_file_that_stays_is(
    path: dict[str, str], eight: Path, tmp_path: Path
) -> None:
    cdi, sysfs = tmp_path / "cdi", shutil.copytree(eight, tmp_path / "sys", symlinks=True)
    flags = ("--sysfs-root", sysfs, "--dev-root", tmp_path, "--allow-default-pool")
    assert nri_rdma("cdi", "generate", "--hooks", "--output", cdi, *flags).returncode == 0
    own = (cdi / "rdma.noderesource.dev-nic.json").rename(cdi / "nri-rdma-podman.json")
    (sysfs / "class/infiniband/mlx5_3").unlink()
    again = ("install", "podman", "--dry-run", *flags, "--cdi-dirs", cdi)
    assert nri_rdma(*again, columns=400, environment=path).stderr == "CDI devices that are removed: mlx5_3.\n"
    shutil.rmtree(sysfs / "class/infiniband")
    told = nri_rdma(*again, columns=400, environment=path).stderr
    assert told.startswith(f"{own} stays as it is, because no CDI devices can be made now: ")


def test_devices_that_are_generated_take_the_place_of_those_of_install_podman(eight: Path, tmp_path: Path) -> None:
    flags = ("--sysfs-root", eight, "--dev-root", tmp_path, "--allow-default-pool", "--output", tmp_path / "cdi")
    assert nri_rdma("cdi", "generate", "--hooks", *flags).returncode == 0
    made = tmp_path / "cdi/rdma.noderesource.dev-nic.json"
    own = made.rename(made.with_name("nri-rdma-podman.json"))
    done = nri_rdma("cdi", "generate", "--hooks", "--mode", "exclusive", *flags, columns=400)
    assert (done.returncode, done.stdout.splitlines()[0].startswith(f"{own}, which ")) == (0, True)
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == [made.name]


def test_without_podman_nothing_is_set_up(tmp_path: Path) -> None:
    done = nri_rdma("install", "podman", environment={"PATH": str(tmp_path)})
    assert "no podman in PATH" in assert_one_error(done, "INSTALL", 1)


def test_where_nothing_was_set_up_nothing_is_removed(path: dict[str, str]) -> None:
    if Path(FOLDER).exists() or Path(DROP_IN).exists():
        pytest.skip("this machine's podman is set up for nri-rdma")
    done = nri_rdma("uninstall", "podman", "--dry-run", columns=200, environment=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("nothing was changed.\n")


@pytest.mark.parametrize("command", ["install", "uninstall"])
@pytest.mark.parametrize("engine", ["podman", "docker", "host"])
def test_the_command_alone_shows_what_there_is(command: str, engine: str) -> None:
    done = nri_rdma(command)
    assert done.returncode == 0
    assert f"nri-rdma {command} {engine}" in done.stdout


DOCKERS_FILES = ("/usr/local/lib/nri-rdma/docker/runc", "/usr/local/bin/containerd-shim-nri-rdma-v1")


def with_docker(folder: Path, version: str) -> dict[str, str]:
    """A PATH with a docker that knows its version and nothing else."""
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}"\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_docker_that_takes_no_shims_name_is_not_set_up(tmp_path: Path) -> None:
    version = "Docker version 20.10.24+dfsg1, build 297e128"
    done = nri_rdma("install", "docker", environment=with_docker(tmp_path, version), columns=400)
    assert version in assert_one_error(done, "INSTALL", 1)


def test_without_docker_nothing_is_set_up(tmp_path: Path) -> None:
    done = nri_rdma("install", "docker", environment={"PATH": str(tmp_path)})
    assert "no docker in PATH" in assert_one_error(done, "INSTALL", 1)


def test_where_docker_was_not_set_up_nothing_is_removed(tmp_path: Path) -> None:
    if any(map(os.path.exists, DOCKERS_FILES)):
        pytest.skip("this machine's Docker is set up for nri-rdma")
    environment = with_docker(tmp_path, "Docker version 28.5.2, build x")
    done = nri_rdma("uninstall", "docker", "--dry-run", columns=200, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("nothing was changed.\n")


def test_an_nri_rdma_that_is_not_of_the_image_is_not_copied(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    done = nri_rdma("install", "host", "--mounted-at", tmp_path, columns=400)
    assert "is not the interpreter of nri-rdma's image" in assert_one_error(done, "INSTALL", 1)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_was_copied_nothing_is_removed(tmp_path: Path) -> None:
    done = nri_rdma("uninstall", "host", "--mounted-at", tmp_path, columns=400)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("nothing was changed.\n")

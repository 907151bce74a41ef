"""The doctor tells where Docker's containers with our runtime would not start, or would ask another daemon."""

import os
from pathlib import Path

import pytest

from nri_rdma.commands.common.changes import carry_out_all, to_write
from nri_rdma.commands.doctor.docker_setup import docker
from nri_rdma.commands.install.docker_files import DockerFiles
from nri_rdma.commands.install.hook import HookSettings
from nri_rdma.host import hook_program
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, Bench

SOURCE = Path(__file__).parents[4] / "hooks/nri-rdma-oci-hook"
HOOK = "usr/local/lib/nri-rdma/nri-rdma-oci-hook"
OURS = "usr/local/lib/nri-rdma/docker/runc"
SHIM = "usr/local/bin/containerd-shim-nri-rdma-v1"
REAL = ("usr/bin/containerd-shim-runc-v2", "usr/sbin/runc")


@pytest.fixture
def root(bench: Bench) -> Path:
    """A machine whose Docker is set up."""
    settings = HookSettings(annotation_prefix="rdma.noderesource.dev", socket=bench.machine.settings.hook_socket)
    files = DockerFiles(settings=settings, root=bench.machine.etc.parent)
    carry_out_all(to_write(files.all(SOURCE)))
    for name in REAL:
        (files.root / name).parent.mkdir(parents=True, exist_ok=True)
        (files.root / name).touch(0o755)
    return files.root


def test_a_docker_that_is_not_set_up_is_none_of_its_business(bench: Bench) -> None:
    assert bench.finds(docker).result is NA


def test_one_that_is_set_up_is_fine(bench: Bench, root: Path) -> None:
    found = bench.finds(docker)
    assert (found.result, "--runtime nri-rdma.v1" in found.found) == (OK, True)


def test_a_hook_whose_interpreter_is_missing_lets_no_container_start(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_program, "interpreter_of", lambda _program: root / "python3")
    found = bench.finds(docker)
    assert (found.result, found.found.partition(",")[0]) == (PROBLEM, f"{root}/python3")


@pytest.mark.parametrize("name", [HOOK, OURS, SHIM])
def test_what_is_no_program_lets_no_container_start(bench: Bench, root: Path, name: str) -> None:
    (root / name).chmod(0o644)
    found = bench.finds(docker)
    assert (found.result, str(root / name) in found.found) == (PROBLEM, True)
    assert found.fix == "nri-rdma install docker"


@pytest.mark.parametrize("name", [HOOK, OURS])
def test_what_is_gone_is_told(bench: Bench, root: Path, name: str) -> None:
    (root / name).unlink()
    found = bench.finds(docker)
    assert (found.result, str(root / name) in found.found) == (PROBLEM, True)


@pytest.mark.parametrize("name", [OURS, SHIM])
def test_what_is_for_other_settings_is_told(bench: Bench, root: Path, name: str) -> None:
    (root / name).write_text((root / name).read_text() + "# older\n")
    found = bench.finds(docker)
    assert (found.result, "other settings" in found.found) == (PROBLEM, True)


@pytest.mark.parametrize("name", REAL)
def test_a_docker_that_is_gone_is_told(bench: Bench, root: Path, name: str) -> None:
    (root / name).unlink()
    found = bench.finds(docker)
    assert (found.result, Path(name).name in found.found) == (PROBLEM, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_hook_that_others_than_root_could_replace_is_a_problem(bench: Bench, root: Path) -> None:
    os.chown((root / HOOK).parent, 65534, 65534)
    found = bench.finds(docker)
    assert (found.result, "others than root may replace files in" in found.found) == (PROBLEM, True)
    assert "chown root" in found.fix

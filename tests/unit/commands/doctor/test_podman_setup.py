"""The doctor tells where a container with annotations could start bare."""

from pathlib import Path

import pytest

from nri_rdma.commands.common.changes import carry_out_all, to_write
from nri_rdma.commands.doctor import guard, runtime, service
from nri_rdma.commands.doctor.examination import examine
from nri_rdma.commands.doctor.finding import Finding
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.commands.doctor.podman_setup import podman
from nri_rdma.commands.install.hook import HookSettings
from nri_rdma.commands.install.podman_files import PodmanFiles
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.nri.runtime_link import Link
from nri_rdma.host import hook_program
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, WARNING, Bench
from tests.unit.rigs.inside_daemon import InsideDaemon

SOURCE = Path(__file__).parents[4] / "hooks/nri-rdma-oci-hook"
HOOK = "usr/local/lib/nri-rdma/nri-rdma-oci-hook"
FOLDER = "usr/local/lib/nri-rdma/podman-hooks.d"
LACKING = ("device nodes", "equal rails", "GPUDirect")
"""Checks of the node "eight", which has neither device nodes nor a driver of its GPUs, and two MTUs."""


@pytest.fixture
def root(bench: Bench) -> Path:
    """A machine whose podman is set up."""
    socket = bench.machine.settings.hook_socket
    settings = HookSettings(annotation_prefix="rdma.noderesource.dev", socket=socket)
    files = PodmanFiles(settings=settings, root=bench.machine.etc.parent)
    carry_out_all(to_write((*files.of_hooks(SOURCE), files.drop_in((5, 4, 2)))))
    return files.root


def test_a_podman_that_is_not_set_up_is_none_of_its_business(bench: Bench) -> None:
    assert bench.finds(podman).result is NA


def test_one_that_is_set_up_is_fine(bench: Bench, root: Path) -> None:
    found = bench.finds(podman)
    assert (found.result, found.found) == (OK, f"containers with annotations ask by the hooks in {root / FOLDER}")


@pytest.mark.parametrize("name", ["precreate", "createRuntime", "poststop"])
def test_a_definition_that_is_gone_lets_containers_start_bare(bench: Bench, root: Path, name: str) -> None:
    path = root / FOLDER / f"nri-rdma-{name}.json"
    path.write_text("{}")
    assert (bench.finds(podman).result, "other settings" in bench.finds(podman).found) == (PROBLEM, True)
    path.unlink()
    found = bench.finds(podman)
    assert (found.result, found.fix) == (PROBLEM, "nri-rdma install podman")
    assert found.found == f"{path} is not there: containers with annotations start without devices"


def test_a_hook_that_is_gone_lets_none_start(bench: Bench, root: Path) -> None:
    (root / HOOK).chmod(0o644)
    assert bench.finds(podman).result is PROBLEM
    (root / HOOK).unlink()
    assert (bench.finds(podman).result, str(root / HOOK) in bench.finds(podman).found) == (PROBLEM, True)


def test_a_hook_whose_interpreter_is_missing_lets_none_start(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_program, "interpreter_of", lambda _program: root / "python3")
    found = bench.finds(podman)
    assert (found.result, found.found.partition(",")[0]) == (PROBLEM, f"{root}/python3")


def test_a_later_file_that_hides_the_folder_is_named(bench: Bench, root: Path) -> None:
    later = root / "etc/containers/containers.conf.d/99-z.conf"
    later.write_text('[engine]\nhooks_dir = ["/z", {append=false}]\n')
    found = bench.finds(podman)
    assert (found.result, str(later) in found.found) == (PROBLEM, True)


def faults(machine: Machine) -> list[Finding]:
    """What is wrong with a machine, but for what the node "eight" lacks."""
    return [it for it in examine(machine) if it.result in {PROBLEM, WARNING} and it.check not in LACKING]


def test_a_host_with_podman_only_is_well_with_a_daemon(bench: Bench, root: Path, daemon: InsideDaemon) -> None:
    machine = bench.machine
    status = ask_status(daemon.settings.control_path)
    status["runtime"] |= {"link": str(Link.NONE), "engines": ["podman"]}
    vars(machine)["daemon"] = status
    assert faults(machine) == []
    sentence = "there is no runtime with NRI here, and our hook serves podman"
    assert runtime.nri_socket(machine).found == f"not needed: {sentence}"
    assert service.daemon(machine).found.endswith(sentence)
    assert guard.guard(machine).result is OK


def test_a_host_with_podman_only_has_a_problem_without_a_daemon(bench: Bench, root: Path) -> None:
    found = faults(bench.machine)
    assert [(it.check, it.result) for it in found] == [("daemon", PROBLEM)]
    assert found[0].found.endswith(": no container of podman that asks for a device starts")

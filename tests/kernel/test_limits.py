"""A limited container's end, with real processes; its cgroup is a folder of files."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.attach.liveness import NoProcesses
from nri_rdma.attach.port import ProcessIdentity
from nri_rdma.host.limits import ContainerLimits
from nri_rdma.host.watch.processes import ProcessWatcher
from tests.rig.deadline import wait_until

LIMITED = "mlx5_0 hca_handle=2 hca_object=max\nmlx5_1 hca_handle=max hca_object=max\n"
LIFTED = "mlx5_0 hca_handle=max hca_object=max\n"
PATH = "/kubepods/pod1/main"
WHERE = "ml/train, container main"


class Container:
    """Its processes, and its cgroup as a kernel without rdma.peak shows it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / PATH.removeprefix("/")
        self.folder.mkdir(parents=True)
        self.processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
        self.rdma_max.write_text(LIMITED)
        self.procs.write_text("".join(f"{process.pid}\n" for process in reversed(self.processes)))

    @property
    def rdma_max(self) -> Path:
        return self.folder / "rdma.max"

    @property
    def procs(self) -> Path:
        return self.folder / "cgroup.procs"

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    container = Container(tmp_path)
    yield container
    container.end()


@pytest.fixture
def limits(tmp_path: Path) -> Iterator[ContainerLimits]:
    def gone(process: ProcessIdentity) -> None:
        made.process_gone(process)

    watcher = ProcessWatcher(gone)
    made = ContainerLimits(tmp_path, watcher)
    yield made
    watcher.close()


def test_limits_are_lifted_when_the_first_process_ends(container: Container, limits: ContainerLimits) -> None:
    limits.lift_at_end(PATH, WHERE)
    later = container.processes[1]
    later.kill()
    later.wait()
    assert container.rdma_max.read_text() == LIMITED
    container.processes[0].kill()
    wait_until(lambda: container.rdma_max.read_text().startswith(LIFTED), "the limits to go", seconds=5)


def test_limits_of_a_container_that_has_ended_are_lifted_at_once(container: Container, limits: ContainerLimits) -> None:
    container.end()
    limits.lift_at_end(PATH, WHERE)
    assert container.rdma_max.read_text().startswith(LIFTED)


def test_where_the_kernel_frees_limits_itself_nobody_watches(container: Container, tmp_path: Path) -> None:
    (container.folder / "rdma.peak").touch()
    ContainerLimits(tmp_path, NoProcesses()).lift_at_end(PATH, WHERE)  # it would raise, and be logged


@pytest.mark.parametrize("path", [PATH + "x", "/..", ""])
def test_a_container_without_a_cgroup_is_not_refused_for_it(path: str, limits: ContainerLimits) -> None:
    limits.lift_at_end(path, WHERE)


def test_limits_that_will_outlive_their_container_are_told(
    container: Container, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    container.procs.write_text("0\n")
    ContainerLimits(tmp_path, NoProcesses()).lift_at_end(PATH, WHERE)
    assert [record.message for record in caplog.records] == ["cannot remove the rdma limits of a container at its end"]
    assert "pid namespace" in caplog.records[0].error  # type: ignore[attr-defined]  # of extra

"""Limits of a container and their removal at its end, with real processes; its cgroup is a folder of files."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.liveness import NoProcesses
from nri_rdma.attach.port import ProcessIdentity
from nri_rdma.errors import LimitsError
from nri_rdma.host.limits import ContainerLimits
from nri_rdma.host.watch.processes import ProcessWatcher, start_of
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
    wait_until(lambda: container.rdma_max.read_text().startswith(LIFTED), "the limits to go")


def test_limits_stay_when_another_process_of_the_container_ends_while_they_are_looked_at(
    container: Container, limits: ContainerLimits
) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    container.procs.write_text(f"{child.pid}\n{container.procs.read_text()}")
    limits.lift_at_end(PATH, WHERE)
    assert container.rdma_max.read_text() == LIMITED
    container.end()
    wait_until(lambda: container.rdma_max.read_text().startswith(LIFTED), "the limits to go")


def test_limits_of_a_container_that_has_ended_are_lifted_at_once(container: Container, limits: ContainerLimits) -> None:
    container.end()
    limits.lift_at_end(PATH, WHERE)
    assert container.rdma_max.read_text().startswith(LIFTED)


def test_where_the_kernel_frees_limits_itself_nobody_watches(
    container: Container, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (container.folder / "rdma.peak").touch()
    ContainerLimits(tmp_path, NoProcesses()).lift_at_end(PATH, WHERE)  # it would raise, and be logged
    assert caplog.records == []
    assert container.rdma_max.read_text() == LIMITED


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


class Started:
    """Knows processes by their numbers, and reports no end: the test does."""

    def __init__(self) -> None:
        self.watched: list[ProcessIdentity] = []

    def watch(self, pid: int) -> ProcessIdentity:
        self.watched.append(ProcessIdentity(pid=pid, start=start_of(pid)))
        return self.watched[-1]

    def watch_again(self, process: ProcessIdentity) -> None:
        self.watch(process.pid)


def test_the_first_process_is_watched_by_its_start_and_not_by_its_place_in_the_list(
    container: Container, tmp_path: Path
) -> None:
    started = Started()
    ContainerLimits(tmp_path, started).lift_at_end(PATH, WHERE)
    first = min(container.processes, key=lambda process: (start_of(process.pid), process.pid))
    assert [process.pid for process in started.watched] == [first.pid]


def test_the_end_of_another_process_lifts_nothing(container: Container, tmp_path: Path) -> None:
    started = Started()
    limits = ContainerLimits(tmp_path, started)
    limits.lift_at_end(PATH, WHERE)
    (first,) = started.watched
    limits.process_gone(ProcessIdentity(pid=1, start=first.start))
    limits.process_gone(replace(first, start=first.start + 1))  # a later process with the number of the first
    assert container.rdma_max.read_text() == LIMITED
    limits.process_gone(first)
    assert container.rdma_max.read_text().startswith(LIFTED)


def test_the_end_of_a_container_is_handled_once(container: Container, tmp_path: Path) -> None:
    started = Started()
    limits = ContainerLimits(tmp_path, started)
    limits.lift_at_end(PATH, WHERE)
    limits.process_gone(started.watched[0])
    container.rdma_max.write_text(LIMITED)
    limits.process_gone(started.watched[0])
    assert container.rdma_max.read_text() == LIMITED


def test_a_cgroup_that_went_before_its_limits_is_no_warning(
    container: Container, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    started = Started()
    limits = ContainerLimits(tmp_path, started)
    limits.lift_at_end(PATH, WHERE)
    shutil.rmtree(container.folder)
    limits.process_gone(started.watched[0])
    assert [(it.levelname, it.message) for it in caplog.records] == [
        ("INFO", "the cgroup went before its rdma limits"),
    ]


def test_limits_that_cannot_be_lifted_are_a_warning_with_the_cgroup(
    container: Container, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = Started()
    limits = ContainerLimits(tmp_path, started)
    limits.lift_at_end(PATH, WHERE)
    container.rdma_max.unlink()
    container.rdma_max.mkdir()
    limits.process_gone(started.watched[0])
    (record,) = caplog.records
    assert (record.levelname, record.message) == ("WARNING", "cannot remove the rdma limits of a cgroup")
    assert record.cgroup == PATH  # type: ignore[attr-defined]  # of extra


def test_limits_are_written_into_the_containers_cgroup(container: Container, limits: ContainerLimits) -> None:
    container.rdma_max.write_text("")
    lines = ("mlx5_0 hca_handle=2 hca_object=max", "mlx5_1 hca_handle=3 hca_object=4")
    limits.write(PATH, lines, WHERE)
    assert container.rdma_max.read_text().splitlines() == list(lines)


def test_limits_that_cannot_be_written_are_an_error_that_names_the_container(limits: ContainerLimits) -> None:
    with pytest.raises(LimitsError) as caught:
        limits.write(PATH, ("mlx5_0 hca_handle=2",), WHERE)
    assert caught.value.where.startswith(WHERE)

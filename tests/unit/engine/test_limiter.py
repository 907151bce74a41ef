"""The rdma limits of a container are written when it starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.liveness import NoProcesses
from nri_rdma.engine.container import ListedContainer
from nri_rdma.engine.limiter import Limiter
from nri_rdma.errors import ErrorCode, LimitsError
from nri_rdma.host.limits import ContainerLimits
from tests.fakes.kernel import World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import make_pod
from tests.unit.attach.rig import SOON, Rig, add_rail
from tests.unit.engine.one_rail import daemon, make_listed, refusal, world
from tests.unit.lifecycle_rig import PREFIX, Daemon

__all__ = ["daemon", "world"]  # fixtures


# Limits

TWO = {f"{PREFIX}/pod": "- limits: {hcaHandles: 2}\n- limits: {hcaObjects: 30}\n"}
TWO_LINES = "mlx5_0 hca_handle=2 hca_object=max\nmlx5_1 hca_handle=max hca_object=30\n"


@pytest.fixture
def two(daemon: Daemon, world: World) -> Daemon:
    """A daemon with a pod that has two devices, limited differently."""
    add_rail(world, "rail1")
    daemon.node.refresh()
    daemon.start(annotations=TWO)
    return daemon


def test_several_limits_are_written_when_the_container_starts(two: Daemon) -> None:
    rdma_max = two.make_cgroup()
    two.edits(annotations=TWO)
    assert rdma_max.read_text() == ""
    two.starting()
    assert rdma_max.read_text() == TWO_LINES


def test_one_limit_is_the_runtimes_to_write(daemon: Daemon) -> None:
    rdma_max = daemon.make_cgroup()
    daemon.start(annotations={f"{PREFIX}/pod": "- limits: {hcaHandles: 2}"})
    daemon.starting()
    assert rdma_max.read_text() == ""


def test_a_container_that_cannot_be_limited_does_not_start(two: Daemon) -> None:
    error = refusal(LimitsError, two.starting)
    assert error.code is ErrorCode.LIMITS_NOT_SET
    assert "ml/train, container main" in error.where


def test_a_daemon_that_started_after_the_container_was_made_limits_it(two: Daemon, world: World) -> None:
    rdma_max = two.make_cgroup()
    two.edits(annotations=TWO)
    two.rig.kill()
    rig = Rig(state=two.rig.state, world=world)
    rig.sandboxes.recover(lambda record: None)
    later = Daemon(rig)
    later.starting()
    assert rdma_max.read_text() == TWO_LINES
    rig.close()


def test_a_container_that_started_while_the_daemon_was_away_is_limited_by_synchronize(two: Daemon) -> None:
    rdma_max = two.make_cgroup()
    node, other = two.edits(annotations=TWO).char_devices
    devices = {char.path: (char.major, char.minor) for char in (node, other)}
    made = ListedContainer(name="main", devices=devices, cgroups_path="/pod/main")
    waiting = replace(made, name="waiting", cgroups_path="/pod/waiting")  # has no cgroup before it starts
    two.engine.synchronize((make_listed(make_pod(), TWO, (made, waiting)),)).result(SOON)
    assert rdma_max.read_text() == TWO_LINES
    assert two.engine.unserved == ()
    assert two.sandbox().containers.cgroups == {"main": "/pod/main", "waiting": "/pod/waiting"}


def test_a_container_that_the_runtime_made_without_us_has_its_one_limit_written_by_synchronize(daemon: Daemon) -> None:
    rdma_max = daemon.make_cgroup()
    one = {f"{PREFIX}/pod": "- limits: {hcaHandles: 2}"}
    daemon.start(annotations=one)
    made = ListedContainer(name="main", devices={}, cgroups_path="/pod/main")
    daemon.engine.synchronize((make_listed(make_pod(), one, (made,)),)).result(SOON)
    assert rdma_max.read_text() == "mlx5_0 hca_handle=2 hca_object=max\n"


def test_a_running_container_that_cannot_be_limited_is_reported(two: Daemon) -> None:
    (two.cgroups / "pod/main/rdma.max").mkdir(parents=True)
    made = ListedContainer(name="main", devices={}, cgroups_path="/pod/main")
    two.engine.synchronize((make_listed(make_pod(), TWO, (made,)),)).result(SOON)
    assert ["LIMITS-NOT-SET" in item.why for item in two.engine.unserved] == [True]


class Noted(ContainerLimits):
    """Notes whose limits are to be removed at the end. Its processes are not looked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, NoProcesses())
        self.lifted: list[str] = []

    def lift_at_end(self, cgroups_path: str, where: str) -> None:
        self.lifted.append(f"{cgroups_path} of {where}")


def test_limits_are_removed_at_the_end_whoever_wrote_them_also_those_of_a_start_that_was_refused(
    two: Daemon,
) -> None:
    limits = Noted(two.cgroups)
    limiter = Limiter(limits, two.rig.spans)
    parts = two.rig.sandboxes.of("sandbox-1")
    two.make_cgroup()
    limiter.limit_all(parts, "main", "/pod/main")
    refusal(LimitsError, lambda: limiter.limit_all(parts, "main", "/pod/none"))
    assert limits.lifted == [f"/pod/{it} of ml/train, container main" for it in ("main", "none")]
    limiter.limit_all((), "main", "/pod/main")
    assert len(limits.lifted) == 2


def test_only_limits_that_an_earlier_daemon_wrote_are_removed_at_the_end(two: Daemon) -> None:
    limits = Noted(two.cgroups)
    limiter = Limiter(limits, two.rig.spans)
    (limited,) = parts = two.rig.sandboxes.of("sandbox-1")
    limiter.lift_at_end(parts, "main", "/pod/main")
    assert limits.lifted == ["/pod/main of ml/train, container main"]
    assert limited.record is not None
    limited.change(record=replace(limited.record, attached=()))
    limiter.lift_at_end(parts, "main", "/pod/main")
    assert len(limits.lifted) == 1


# A container that stands for itself

ALONE = replace(make_pod(pid=4711), is_listed=False, cgroups_path="/box")
LIMITED = {f"{PREFIX}/pod": "- limits: {hcaHandles: 2}"}
LINE = "mlx5_0 hca_handle=2 hca_object=max\n"


@pytest.fixture
def alone(daemon: Daemon) -> Daemon:
    """A daemon with a container that stands for itself, whose process is in its cgroup."""
    daemon.rig.processes.running[4711] = 100
    daemon.start(ALONE, LIMITED)
    rdma_max = daemon.make_cgroup("box")
    rdma_max.with_name("cgroup.procs").write_text("4711\n")
    rdma_max.with_name("rdma.peak").touch()  # a kernel that frees limits, so nobody looks for the process
    return daemon


def test_a_container_that_stands_for_itself_has_its_one_limit_written_before_it_runs(alone: Daemon) -> None:
    alone.engine.start_alone(ALONE)
    assert (alone.cgroups / "box/rdma.max").read_text() == LINE
    assert alone.sandbox().containers.cgroups == {"train": "/box"}


def test_a_container_that_stands_for_itself_in_another_cgroup_is_not_limited(alone: Daemon) -> None:
    (alone.cgroups / "box/cgroup.procs").write_text("1\n")
    error = refusal(LimitsError, lambda: alone.engine.start_alone(ALONE))
    assert error.where == "ml/train"
    assert (alone.cgroups / "box/rdma.max").read_text() == ""


def test_without_limits_its_cgroup_does_not_matter(daemon: Daemon) -> None:
    daemon.rig.processes.running[4711] = 100
    pod = replace(ALONE, cgroups_path="")
    daemon.start(pod)
    daemon.engine.start_alone(pod)
    assert daemon.sandbox().record is not None


def test_the_next_daemon_removes_its_limits_at_its_end_and_knows_its_cgroup(alone: Daemon, world: World) -> None:
    alone.engine.start_alone(ALONE)
    alone.rig.kill()
    rig = Rig(state=alone.rig.state, world=world, processes=alone.rig.processes)
    limits = Noted(alone.cgroups)
    later = Daemon(rig, limits=limits)
    rig.sandboxes.recover(lambda record: None, later=True)
    later.engine.recovered()
    rig.sandboxes.take_up()
    taken_up = later.sandbox().taken_up
    assert taken_up is not None
    taken_up.result(SOON)
    wait_until(lambda: limits.lifted, "the limits to be watched", seconds=SOON)
    assert limits.lifted == ["/box of ml/train"]
    assert later.sandbox().containers.cgroups == {"train": "/box"}
    rig.close()

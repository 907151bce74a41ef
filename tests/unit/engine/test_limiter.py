"""The rdma limits of a container are written when it starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.holdings import NOTHING
from nri_rdma.attach.liveness import NoProcesses
from nri_rdma.engine.container import ListedContainer
from nri_rdma.engine.limiter import Limiter
from nri_rdma.errors import ErrorCode, LimitsError
from nri_rdma.host.limits import ContainerLimits
from tests.fakes.kernel import World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import make_pod
from tests.unit.engine.one_rail import daemon, make_listed, refusal, world
from tests.unit.rigs.attachments import SOON, Rig, add_rail
from tests.unit.rigs.engine import PREFIX, Daemon

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
    rdma_max = two.make_cgroup()
    rdma_max.unlink()
    rdma_max.mkdir()
    made = ListedContainer(name="main", devices={}, cgroups_path="/pod/main")
    two.engine.synchronize((make_listed(make_pod(), TWO, (made,)),)).result(SOON)
    assert ["LIMITS-NOT-SET" in item.why for item in two.engine.unserved] == [True]


# Where the OCI runtime does not enable the controller (crun, docs/adr/0052)

ONE = {f"{PREFIX}/pod": "- limits: {hcaHandles: 2}"}
SCOPE = "pod.slice:cri-containerd:main"


@pytest.fixture
def of_crun(daemon: Daemon) -> Path:
    """The cgroup of a container that has one limit, as crun has made it: below a scope without the controller."""
    daemon.start(annotations=ONE)
    folder = daemon.cgroups / "pod.slice/cri-containerd-main.scope/container"
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("4711\n")
    (folder / "rdma.peak").touch()
    for above in (daemon.cgroups, *list(folder.parents)[:2]):
        (above / "cgroup.subtree_control").write_text("cpu memory\n")
    return folder


def test_crun_is_not_left_to_limit_a_container(daemon: Daemon, of_crun: Path) -> None:
    assert not daemon.engine.leaves_limits(SCOPE, "main", "sandbox-1")


def test_a_container_of_crun_has_the_controller_and_also_its_one_limit_when_it_starts(
    daemon: Daemon, of_crun: Path
) -> None:
    (of_crun / "rdma.max").write_text("")
    daemon.starting(cgroups_path=SCOPE)
    assert (of_crun / "rdma.max").read_text() == LINE


def test_a_container_of_crun_that_would_start_without_its_limits_is_killed(daemon: Daemon, of_crun: Path) -> None:
    """CRI-O starts it whatever is answered."""
    error = refusal(LimitsError, lambda: daemon.starting(cgroups_path=SCOPE))
    assert error.code is ErrorCode.LIMITS_NOT_SET
    assert [
        (above / "cgroup.subtree_control").read_text() for above in (daemon.cgroups, *list(of_crun.parents)[:2])
    ] == ["+rdma"] * 3
    assert (of_crun.parent / "cgroup.kill").read_text() == "1"


def test_that_a_container_without_its_limits_cannot_be_killed_is_told_in_the_log(
    daemon: Daemon, of_crun: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (of_crun.parent / "cgroup.kill").mkdir()
    refusal(LimitsError, lambda: daemon.starting(cgroups_path=SCOPE))
    assert "cannot end a container without its rdma limits" in caplog.text


def test_a_container_of_crun_that_started_while_the_daemon_was_away_is_limited_by_synchronize(
    daemon: Daemon, of_crun: Path
) -> None:
    (of_crun / "rdma.max").write_text("")
    made = ListedContainer(name="main", devices={}, cgroups_path=SCOPE)
    ended = replace(made, name="ended", cgroups_path="pod.slice:cri-containerd:ended")
    (daemon.cgroups / "pod.slice/cri-containerd-ended.scope").mkdir()
    (daemon.cgroups / "pod.slice/cri-containerd-ended.scope/cgroup.procs").write_text("")
    daemon.engine.synchronize((make_listed(make_pod(), ONE, (made, ended)),)).result(SOON)
    assert (of_crun / "rdma.max").read_text() == LINE
    assert not any("LIMITS-NOT-SET" in item.why for item in daemon.engine.unserved)


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
    limiter.limit_all(NOTHING, "main", "/pod/main")
    assert len(limits.lifted) == 2


def test_only_limits_that_an_earlier_daemon_wrote_are_removed_at_the_end(two: Daemon) -> None:
    limits = Noted(two.cgroups)
    limiter = Limiter(limits, two.rig.spans)
    (limited,) = parts = two.rig.sandboxes.of("sandbox-1")
    limiter.lift_at_end(parts, "main", "/pod/main")
    assert limits.lifted == ["/pod/main of ml/train, container main"]
    assert limited.now.record is not None
    limited.change(record=replace(limited.now.record, attached=()))
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
    daemon.make_cgroup("box")
    return daemon


def test_a_container_that_stands_for_itself_has_its_one_limit_written_before_it_runs(alone: Daemon) -> None:
    alone.engine.starts.start_alone(ALONE)
    assert (alone.cgroups / "box/rdma.max").read_text() == LINE
    assert alone.sandbox().containers.cgroups == {"train": "/box"}


def test_a_container_that_stands_for_itself_in_another_cgroup_is_not_limited(alone: Daemon) -> None:
    (alone.cgroups / "box/cgroup.procs").write_text("1\n")
    error = refusal(LimitsError, lambda: alone.engine.starts.start_alone(ALONE))
    assert error.where == "ml/train"
    assert (alone.cgroups / "box/rdma.max").read_text() == ""


def test_without_limits_its_cgroup_does_not_matter(daemon: Daemon) -> None:
    daemon.rig.processes.running[4711] = 100
    pod = replace(ALONE, cgroups_path="")
    daemon.start(pod)
    daemon.engine.starts.start_alone(pod)
    assert daemon.sandbox().now.record is not None


def test_the_next_daemon_removes_its_limits_at_its_end_and_knows_its_cgroup(alone: Daemon, world: World) -> None:
    alone.engine.starts.start_alone(ALONE)
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

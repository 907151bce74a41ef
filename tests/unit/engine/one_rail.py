"""A daemon on a host with one rail."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from nri_rdma.attach.attachments import ATTEMPTS
from nri_rdma.engine.container import Listed, ListedContainer
from nri_rdma.errors import (
    NriRdmaError,
)
from nri_rdma.model.pod import Pod
from nri_rdma.model.waits import Waits
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import World
from tests.unit.rigs.attachments import SOON, Rig, make_world
from tests.unit.rigs.engine import ONE, Daemon

OTHER_PATH = "/run/netns/pod-2"


@pytest.fixture
def world() -> World:
    """A host with one rail, and two pods."""
    made = make_world()
    made.add_namespace(OTHER_PATH)
    return made


@pytest.fixture
def daemon(world: World, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon on it."""
    rig = Rig(state=tmp_path, world=world)
    yield Daemon(rig)
    rig.close()


@pytest.fixture
def overlapped(daemon: Daemon) -> Daemon:
    """A daemon with the settings that are the default, but for the machine that may be slow."""
    daemon.engine.barrier.waits = Waits(barrier_s=0.2)
    return daemon


@pytest.fixture
def planning(world: World, tmp_path: Path) -> Iterator[Daemon]:
    """The same with planners of its own."""
    rig = Rig(state=tmp_path, world=world, planners=Workers(2, name="planner"))
    yield Daemon(rig, waits=Waits(barrier_s=0.2))
    rig.close()


def give_up(overlapped: Daemon) -> None:
    """Its pod's attach fails as often as it is tried."""
    overlapped.rig.gate.fail_at = "after move-netdev"
    overlapped.start()
    done = overlapped.sandbox().attach_done
    for _ in range(ATTEMPTS - 1):
        overlapped.rig.clock.pass_one()
    assert done.exception(SOON) is not None
    overlapped.await_released()


def refusal(kind: type[NriRdmaError], work: Callable[[], object]) -> NriRdmaError:
    with pytest.raises(kind) as caught:
        work()
    return caught.value


# Synchronize


def make_listed(
    pod: Pod, annotations: Mapping[str, str] = ONE, containers: tuple[ListedContainer, ...] | None = None
) -> Listed:
    main = ListedContainer(name="main", devices={})
    return Listed(pod=pod, annotations=annotations, containers=(main,) if containers is None else containers)

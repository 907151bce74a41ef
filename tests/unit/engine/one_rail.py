"""A daemon on a host with one rail."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from nri_rdma.engine.container import Listed, ListedContainer
from nri_rdma.errors import (
    NriRdmaError,
)
from nri_rdma.model.pod import Pod
from tests.fakes.kernel import World
from tests.unit.attach.rig import Rig, make_world
from tests.unit.lifecycle_rig import ONE, Daemon

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


def drop(_value: object) -> None:
    """For what nobody needs."""

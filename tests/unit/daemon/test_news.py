"""What a daemon does about the news of its listeners."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.liveness import NoProcesses
from nri_rdma.attach.port import ProcessIdentity
from nri_rdma.attach.record import Phase
from nri_rdma.daemon.news import News
from nri_rdma.host.limits import ContainerLimits
from nri_rdma.model.request import Mode
from nri_rdma.wire.uevent import Uevent
from tests.unit.attach.builders import make_pod
from tests.unit.rigs.attachments import SOON, Rig, make_world, placed_on

UVERBS = (231, 192)
"""The character device of the devices that the builders make."""


def _uevent(action: str, number: tuple[int, int] | None = None) -> Uevent:
    return Uevent(action=action, subsystem="infiniband", name="mlx5_rail0", sequence=9, number=number)


@pytest.fixture
def namespace(tmp_path: Path) -> Path:
    """A file where a pod's namespace is."""
    path = tmp_path / "netns"
    path.touch()
    return path


@pytest.fixture
def rig(tmp_path: Path, namespace: Path) -> Iterator[Rig]:
    """A daemon's attachments, without a pod."""
    made = Rig(state=tmp_path / "state", world=make_world(path=str(namespace)))
    yield made
    made.close()


@pytest.fixture
def rescanned() -> list[str]:
    """The rescans that were asked for."""
    return []


@pytest.fixture
def removed() -> list[str]:
    """The namespaces that the engine was told of."""
    return []


@pytest.fixture
def news(rig: Rig, tmp_path: Path, rescanned: list[str], removed: list[str]) -> News:
    """News for these attachments."""
    rescans = (lambda: rescanned.append("node"), lambda: rescanned.append("specs"))
    return News(rig.sandboxes, ContainerLimits(tmp_path, NoProcesses()), rescans, removed.append)


def _attached(rig: Rig, path: Path | str, pid: int = 0) -> Attachment:
    mode = Mode.EXCLUSIVE if path else Mode.SHARED
    placed = placed_on(rig.world, "rail0", mode=mode)
    attachment = rig.sandboxes.begin(make_pod(path=str(path), pid=pid), placed, None)
    attachment.attach_done.result(SOON)
    return attachment


@pytest.mark.parametrize(
    ("event", "is_reread"),
    [
        (_uevent("remove", UVERBS), True),
        (_uevent("remove", (231, 7)), False),
        (_uevent("remove"), False),
        (_uevent("add", UVERBS), False),
        (_uevent("move"), True),
    ],
    ids=[
        "its node is removed",
        "another node is",
        "a device without a node is",
        "a node is added",
        "a device is renamed",
    ],
)
def test_a_uevent_has_those_reread_whom_it_may_concern(
    rig: Rig, news: News, namespace: Path, event: Uevent, is_reread: bool
) -> None:
    attachment = _attached(rig, namespace)
    news.uevent(event)
    assert (attachment.now.looked_again is not None) is is_reread
    if attachment.now.looked_again is not None:
        attachment.now.looked_again.result(SOON)


@pytest.mark.parametrize(
    ("mode", "of_rail", "is_reread"),
    [(Mode.SHARED, True, True), (Mode.SHARED, False, False), (Mode.EXCLUSIVE, True, False)],
    ids=["shared", "another netdev", "in the pod, where the host has no news of it"],
)
def test_changes_of_a_netdev_have_those_reread_that_share_its_device(
    rig: Rig, news: News, namespace: Path, mode: Mode, of_rail: bool, is_reread: bool
) -> None:
    (ifindex,) = (link.ifindex for link in rig.fake.links(rig.fake.host) if link.name == "rail0")
    attachment = _attached(rig, namespace if mode is Mode.EXCLUSIVE else "")
    news.netdevs_changed(frozenset({ifindex if of_rail else ifindex + 100}))
    assert (attachment.now.looked_again is not None) is is_reread
    if attachment.now.looked_again is not None:
        attachment.now.looked_again.result(SOON)


def test_the_end_of_a_process_ends_the_sandbox_that_lived_by_it(rig: Rig, news: News) -> None:
    rig.processes.running[77] = 1000
    attachment = _attached(rig, "", pid=77)
    news.process_ended(ProcessIdentity(pid=77, start=999))
    assert attachment.state is Phase.ATTACHED
    news.process_ended(ProcessIdentity(pid=77, start=1000))
    attachment.undo_done.result(SOON)


def test_a_namespace_that_is_removed_ends_its_sandbox(
    rig: Rig, news: News, namespace: Path, removed: list[str]
) -> None:
    attachment = _attached(rig, namespace)
    news.namespace_removed(f"{namespace}-of-another")
    assert attachment.state is Phase.ATTACHED
    news.namespace_removed(str(namespace))
    attachment.undo_done.result(SOON)
    assert removed == [f"{namespace}-of-another", str(namespace)]


def test_a_listener_that_failed_has_everything_looked_at(
    rig: Rig, news: News, namespace: Path, rescanned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    attachment = _attached(rig, namespace)
    news.listener_failed("uevents")
    assert attachment.now.looked_again is not None
    attachment.now.looked_again.result(SOON)
    assert attachment.state is Phase.ATTACHED
    namespace.unlink()
    news.listener_failed("namespaces")
    attachment.undo_done.result(SOON)
    assert rescanned == ["node", "specs"] * 2
    failed = [record.__dict__["listener"] for record in caplog.records if "listener" in record.__dict__]
    assert failed == ["uevents", "namespaces"]

"""The kernel's news of namespaces; its news of devices and processes are tested with what they lead to."""

from pathlib import Path

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.news import look_at_all_again, look_at_all_namespaces, namespace_removed
from nri_rdma.attach.record import Phase
from nri_rdma.model.request import Mode
from tests.fakes.kernel import World
from tests.unit.attach.builders import make_pod
from tests.unit.attach.sandbox_life import Start
from tests.unit.rigs.attachments import SOON, Rig, add_rail, make_world, placed_on


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, ...]:
    """The paths of two namespaces, with a file at each."""
    folder = tmp_path / "netns"
    folder.mkdir()
    for name in ("pod-1", "pod-2"):
        (folder / name).touch()
    return tuple(str(folder / name) for name in ("pod-1", "pod-2"))


@pytest.fixture
def world(paths: tuple[str, ...]) -> World:
    """A host with three rails and these namespaces."""
    made = make_world(path=paths[0])
    made.add_namespace(paths[1])
    for name in ("rail1", "rail2"):
        add_rail(made, name)
    return made


def _attached(rig: Rig, number: int, path: str) -> Attachment:
    pod = make_pod(f"sandbox-{number}", uid=f"uid-{number}", path=path)
    attachment = rig.sandboxes.begin(pod, placed_on(rig.world, f"rail{number}"), None)
    attachment.attach_done.result(SOON)
    return attachment


def test_the_sandboxes_of_a_removed_namespace_end_and_no_others(
    start: Start, world: World, paths: tuple[str, ...]
) -> None:
    rig = start(world)
    gone, left = _attached(rig, 0, paths[0]), _attached(rig, 1, paths[1])
    namespace_removed(rig.sandboxes, paths[0])
    gone.undo_done.result(SOON)
    assert (gone.state, left.state) == (Phase.GONE, Phase.ATTACHED)


def test_the_undo_of_a_removed_namespace_goes_back_to_the_call_that_began_the_attach(
    start: Start, world: World, paths: tuple[str, ...]
) -> None:
    rig = start(world)
    with rig.spans.span("RunPodSandbox") as call:
        attachment = _attached(rig, 0, paths[0])
    namespace_removed(rig.sandboxes, paths[0])
    attachment.undo_done.result(SOON)
    (undo,) = [span for span in rig.spans.recent() if span.name == "undo"]
    assert (undo.parent_id, undo.links) == (0, ((call.trace_id, call.span_id),))


def test_lost_news_of_namespaces_end_the_sandboxes_whose_path_is_gone(
    start: Start, world: World, paths: tuple[str, ...]
) -> None:
    rig = start(world)
    gone, left = _attached(rig, 0, paths[0]), _attached(rig, 1, paths[1])
    hosts = rig.sandboxes.begin(
        make_pod("sandbox-3", uid="uid-3", path=""), placed_on(world, "rail2", mode=Mode.SHARED), None
    )
    hosts.attach_done.result(SOON)
    Path(paths[0]).unlink()
    look_at_all_namespaces(rig.sandboxes)
    gone.undo_done.result(SOON)
    assert (gone.state, left.state, hosts.state) == (Phase.GONE, Phase.ATTACHED, Phase.ATTACHED)


def test_all_attachments_are_reread_when_devices_may_have_other_names(
    start: Start, world: World, paths: tuple[str, ...]
) -> None:
    rig = start(world)
    both = _attached(rig, 0, paths[0]), _attached(rig, 1, paths[1])
    look_at_all_again(rig.sandboxes)
    for attachment in both:
        assert attachment.now.looked_again is not None
        attachment.now.looked_again.result(SOON)

"""A view is what the engine knows, without asking anybody."""

from __future__ import annotations

from nri_rdma.engine.view import view_of
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import ONE
from tests.unit.rigs.engine_with_kubelet import MOVE, NIC, Node, node, spec, world

__all__ = ["node", "world"]  # fixtures


def test_a_view_has_what_is_attached_held_and_seen(node: Node) -> None:
    node.specify(spec(NIC, 1, keys=MOVE))
    node.start(annotations=ONE)
    node.sandbox().attach_done.result(SOON)
    node.create("sidecar", 1, cdi=(NIC,), annotations=ONE)
    view = view_of(node.engine)
    assert [it.part for it in view.attachments] == ["", "sidecar"]
    assert {str(key) for key in view.taken} == {"mlx5_0", "mlx5_1"}
    assert [(it.container, it.what) for it in view.sightings] == [("sidecar", NIC)]
    assert view.namespaces_held == 2
    assert (view.specs_are_read, view.kubelet_tells, view.unserved, view.unserved_count) == (True, True, (), 0)


def test_a_view_stays_while_the_engine_goes_on(node: Node) -> None:
    node.start(annotations=ONE)
    view = view_of(node.engine)
    node.stop()
    assert len(view.attachments) == 1
    assert view_of(node.engine).attachments == ()


def test_a_view_has_the_netdevs_that_pods_have_lost(node: Node) -> None:
    node.start(annotations=ONE)
    attachment = node.sandbox()
    attachment.attach_done.result(SOON)
    assert (view_of(node.engine).lost_count, view_of(node.engine).lost_netdevs) == (0, ())
    assert attachment.now.record is not None
    node.engine.attachments.lost().note(attachment.pod, attachment.now.record.plan.moves[0], "it is gone")
    view = view_of(node.engine)
    assert (view.lost_count, [it.netdev for it in view.lost_netdevs]) == (1, ["rail0"])

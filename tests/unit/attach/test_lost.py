"""Lost netdevs are counted once each, and listed as long as they are not too many."""

from dataclasses import replace

import pytest

from nri_rdma.attach.lost import KEPT, LostNetdevs
from nri_rdma.attach.plan import NetdevMove
from nri_rdma.model.pod import Pod
from tests.fakes.kernel import FakeKernel, World
from tests.rig.linkops import capture
from tests.unit.attach.builders import make_pod


def _move() -> NetdevMove:
    world = World()
    link = world.add_link(world.host, "rail0")
    state = capture(FakeKernel(world), FakeKernel(world).host, link.ifindex)
    return NetdevMove(device="mlx5_0", link=state, pod_name="rdma0", pod_ifindex=7, mtu=None, addresses=())


def _pod(sandbox: str) -> Pod:
    return replace(make_pod(), sandbox_id=sandbox)


def test_a_lost_netdev_is_logged_and_listed_with_its_pod(caplog: pytest.LogCaptureFixture) -> None:
    lost = LostNetdevs(clock=lambda: 12.0)
    lost.note(_pod("one"), _move(), "it is gone")
    (row,) = lost.rows()
    assert (row.netdev, row.kind, row.device, row.pod) == ("rail0", "veth", "mlx5_0", str(_pod("one")))
    assert (row.sandbox, row.why, row.at, lost.count) == ("one", "it is gone", 12.0, 1)
    (line,) = caplog.records
    assert (line.levelname, line.getMessage()) == ("WARNING", "the host has lost a netdev")
    assert (vars(line)["netdev"], vars(line)["why"]) == ("rail0", "it is gone")


def test_an_undo_that_is_tried_again_counts_a_netdev_once(caplog: pytest.LogCaptureFixture) -> None:
    lost = LostNetdevs()
    for _ in range(3):
        lost.note(_pod("one"), _move(), "it is gone")
    assert (lost.count, len(lost.rows()), len(caplog.records)) == (1, 1, 1)
    lost.note(_pod("two"), _move(), "it is gone")
    assert [(row.sandbox) for row in lost.rows()] == ["two", "one"]


def test_the_list_is_bounded_and_the_count_goes_on() -> None:
    lost = LostNetdevs()
    for number in range(KEPT + 3):
        lost.note(_pod(f"pod-{number}"), _move(), "it is gone")
    assert (lost.count, len(lost.rows())) == (KEPT + 3, KEPT)
    assert lost.rows()[0].sandbox == f"pod-{KEPT + 2}"
    assert lost.rows()[-1].sandbox == "pod-3"

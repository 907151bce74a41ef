"""A container that runs without what its pod asks for is found, by what it has and by when it was made."""

from __future__ import annotations

from contextlib import suppress

from nri_rdma.engine.container import Listed, ListedContainer
from nri_rdma.errors import NotReadyError
from nri_rdma.model.pod import Pod
from tests.fakes.kernel import World
from tests.unit.attach.builders import make_pod
from tests.unit.attach.sandbox_life import take_name
from tests.unit.engine.one_rail import daemon, make_listed, world
from tests.unit.model.hardware import RDMA_CM, uverbs
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import PREFIX, Daemon
from tests.unit.rigs.engine_with_kubelet import MOVE, NIC, Node, names, node, spec

__all__ = ["daemon", "node", "world"]  # fixtures


def test_containers_that_run_without_what_their_pod_asks_for_are_reported(daemon: Daemon) -> None:
    served, bare, empty, other = (make_pod(f"sandbox-{number}", uid=f"uid-{number}") for number in range(1, 5))
    daemon.start(served)
    listed = (
        make_listed(served, containers=()),
        make_listed(bare),
        make_listed(empty, containers=()),
        make_listed(other, {}),
    )
    daemon.engine.synchronize(listed).result(SOON)
    assert [item.pod for item in daemon.engine.unserved] == [bare]


def test_a_container_that_was_made_in_an_attached_sandbox_while_the_daemon_was_away_is_reported(daemon: Daemon) -> None:
    daemon.start()
    daemon.engine.synchronize((make_listed(make_pod()),)).result(SOON)
    assert [item.why for item in daemon.engine.unserved] == ["container main was made while nri-rdma was away"]


def test_a_container_that_was_made_before_its_pods_attach_was_done_is_reported(daemon: Daemon) -> None:
    """The daemon was killed in the middle of the attach; the next one begins it anew."""
    daemon.rig.gate.stop_at = "before configure-netdev"
    daemon.start(seconds=0.05)
    assert daemon.rig.gate.reached.wait(SOON)
    daemon.engine.synchronize((make_listed(make_pod()),)).result(SOON)
    assert [item.why for item in daemon.engine.unserved] == ["container main was made while nri-rdma was away"]
    daemon.rig.gate.open.set()


def test_a_container_that_was_made_before_its_pods_attach_was_planned_is_reported(daemon: Daemon) -> None:
    daemon.rig.gate.stop_at = "before plan"
    with suppress(NotReadyError):
        daemon.start(seconds=0.05)
    assert daemon.rig.gate.reached.wait(SOON)
    assert daemon.sandbox().now.record is None
    daemon.engine.synchronize((make_listed(make_pod()),)).result(SOON)
    assert [item.why for item in daemon.engine.unserved] == ["container main was made while nri-rdma was away"]
    daemon.rig.gate.open.set()


def test_a_container_for_which_nothing_is_being_attached_is_not_reported(daemon: Daemon) -> None:
    daemon.rig.gate.stop_at = "before configure-netdev"
    asked = {f"{PREFIX}/pod": "[{count: 1, containers: [other]}]"}
    daemon.start(annotations=asked, seconds=0.05)
    assert daemon.rig.gate.reached.wait(SOON)
    daemon.engine.synchronize((make_listed(make_pod(), asked),)).result(SOON)
    assert daemon.engine.unserved == ()
    daemon.rig.gate.open.set()


def test_a_container_that_was_made_while_we_were_away_is_reported(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    running = ListedContainer(name="trainer", devices={uverbs(0).path: (231, 192), RDMA_CM.path: (10, 58)})
    node.engine.synchronize((Listed(pod=make_pod(), annotations={}, containers=(running,)),)).result(SOON)
    (unserved,) = node.engine.unserved
    assert "trainer" in unserved.why


def test_a_container_made_without_our_answer_is_reported_though_its_claim_is_attached(node: Node) -> None:
    pod = make_pod()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(pod, "trainer", NIC)
    node.start(annotations={})
    listed = listing(pod, frozenset())  # it has the nodes, which CDI gave it, and neither variables nor limits
    node.engine.synchronize((listed,)).result(SOON)
    (unserved,) = node.engine.unserved
    assert "trainer" in unserved.why


def test_a_container_made_with_our_answer_is_not_reported(node: Node) -> None:
    pod = make_pod()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(pod, "trainer", NIC)
    node.start(annotations={})
    listed = listing(pod, frozenset(names(node.create("trainer", 0))))
    node.engine.synchronize((listed,)).result(SOON)
    assert node.engine.unserved == ()


def listing(pod: Pod, env: frozenset[str]) -> Listed:
    """The pod with a running container that has the nodes of its claim."""
    nodes = {node.path: (node.major, node.minor) for node in (uverbs(0), RDMA_CM)}
    running = ListedContainer(name="trainer", devices=nodes, cgroups_path="/pod/trainer", env=env)
    return Listed(pod=pod, annotations={}, containers=(running,))


def test_of_a_sandbox_whose_devices_go_back_nothing_is_said_to_be_lacking(daemon: Daemon, world: World) -> None:
    daemon.start()
    free = take_name(world, "rail0")
    daemon.stop(seconds=0.05)
    daemon.rig.clock.wait_for_one()
    daemon.engine.synchronize((make_listed(make_pod()),)).result(SOON)
    assert daemon.engine.unserved == ()
    free()


def test_a_container_without_devices_is_not_reported_though_its_pod_has_a_claim_for_another_one(node: Node) -> None:
    pod = make_pod()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(pod, "trainer", NIC)
    node.start(annotations={})
    helper = ListedContainer(name="helper", devices={})
    node.engine.synchronize((Listed(pod=pod, annotations={}, containers=(helper,)),)).result(SOON)
    assert node.engine.unserved == ()


def test_a_container_whose_devices_go_back_is_not_limited(node: Node, world: World) -> None:
    pod = make_pod()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(pod, "trainer", NIC)
    node.start(annotations={})
    listed = listing(pod, frozenset(names(node.create("trainer", 0))))
    file = node.make_cgroup("pod/trainer")
    free = take_name(world, "rail0")
    node.stop(seconds=0.05)
    node.rig.clock.wait_for_one()
    node.engine.synchronize((listed,)).result(SOON)
    assert file.read_text() == ""
    free()


def test_a_container_that_was_made_while_we_were_away_is_limited(node: Node) -> None:
    pod = make_pod()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(pod, "trainer", NIC)
    node.start(annotations={})
    file = node.make_cgroup("pod/trainer")
    node.engine.synchronize((listing(pod, frozenset()),)).result(SOON)
    assert file.read_text() == "mlx5_0 hca_handle=4 hca_object=max\n"

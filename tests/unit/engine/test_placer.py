"""What a pod gets is decided once on what is known, and once more on a fresh reading before it is refused."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.decide.decision import Decision, Question
from nri_rdma.decide.policy import Asker, policy_of
from nri_rdma.engine import node_cache
from nri_rdma.engine.asking import Asked
from nri_rdma.engine.container import NOTHING_REQUESTED
from nri_rdma.engine.specs import SpecCache
from nri_rdma.errors import ErrorCode, NotReadyError, PlacementError
from nri_rdma.model.device import LinkLayer
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode
from tests.fakes.kernel import World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import make_device, make_pod
from tests.unit.attach.sandbox_life import drop
from tests.unit.engine.one_rail import OTHER_PATH, daemon, refusal, world
from tests.unit.rigs.attachments import SOON, add_rail
from tests.unit.rigs.engine import ONE, PREFIX, Daemon, Others, requested
from tests.unit.rigs.engine_with_kubelet import MOVE, NIC, Node, daemon_on, node, spec

__all__ = ["daemon", "node", "world"]  # fixtures


def test_a_refusal_is_given_on_fresh_facts_only(daemon: Daemon, world: World) -> None:
    world.host.links.clear()
    daemon.node.refresh()
    reads = daemon.reads
    refusal(PlacementError, daemon.start)
    assert daemon.reads == reads + 1
    add_rail(world, "rail1")  # nobody tells the daemon
    daemon.start()
    assert [device.path for device in daemon.edits().char_devices] == ["/dev/infiniband/uverbs1"]


def test_a_pod_is_placed_once_and_once_more_only_when_it_would_be_refused(
    daemon: Daemon, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision that is taken twice may give another device the second time, after the first was reported."""
    refusals, place = list[bool](), daemon.reservations.place

    def counted(key: str, question: Question) -> Decision:
        decision = place(key, question)
        refusals.append(decision.refusal is not None)
        return decision

    monkeypatch.setattr(daemon.reservations, "place", counted)
    daemon.start()
    assert refusals == [False]
    daemon.stop()
    world.host.links.clear()
    daemon.node.refresh()
    refusals.clear()
    refusal(PlacementError, daemon.start)
    assert refusals == [True, True]


def test_facts_that_cannot_be_had_in_time_refuse_and_say_so(daemon: Daemon, world: World) -> None:
    world.host.links.clear()
    daemon.node.refresh()
    release = threading.Event()
    for key in ("a", "b"):
        daemon.rig.workers.submit(key, lambda: drop(release.wait(SOON)))
    begun = time.monotonic()
    assert refusal(NotReadyError, lambda: daemon.start(seconds=0.05)).code is ErrorCode.NOT_READY
    assert time.monotonic() - begun < SOON / 2
    release.set()


def test_another_pod_is_refused_while_the_device_is_held(daemon: Daemon) -> None:
    daemon.start()
    other = make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH)
    error = refusal(PlacementError, lambda: daemon.start(other))
    assert "ml/train" in str(error)


def test_a_pod_that_starts_right_after_a_stop_waits_for_the_release_and_has_the_device(
    daemon: Daemon, world: World
) -> None:
    """The runtime's answer to the stop does not wait for the rescan of the node that comes before a release."""
    daemon.start()
    released, release = daemon.rig.on_gone, threading.Event()
    assert released is not None

    def slow(key: str) -> None:
        assert release.wait(SOON)
        released(key)

    daemon.rig.on_gone = slow
    daemon.engine.stop_pod("sandbox-1", time.monotonic() + SOON)
    assert [link.name for link in world.host.links.values() if link.name.startswith("rail")] == ["rail0"]
    assert daemon.holders == {make_device("mlx5_0", ()).id}
    assert daemon.engine.remembers("sandbox-1"), "its removal waits for the release, too"
    threading.Timer(0.05, release.set).start()
    begun = time.monotonic()
    daemon.start(make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH))
    assert 0.03 < time.monotonic() - begun < SOON
    assert (daemon.rig.sandboxes.knows("sandbox-1"), daemon.rig.sandboxes.knows("sandbox-2")) == (False, True)


def test_a_release_that_fails_keeps_no_pod_waiting_for_long(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "RELEASE_S", 0.05)
    release = threading.Event()
    daemon.start()
    daemon.rig.on_gone = lambda _key: drop(release.wait(SOON))
    daemon.engine.stop_pod("sandbox-1", time.monotonic() + SOON)
    begun = time.monotonic()
    error = refusal(PlacementError, lambda: daemon.start(make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH)))
    assert "ml/train" in str(error)
    assert time.monotonic() - begun < SOON / 2
    release.set()


def test_a_device_whose_routes_are_gone_is_given_to_the_next_pod(daemon: Daemon, world: World) -> None:
    add_rail(world, "rail1")
    rail = next(link for link in world.host.links.values() if link.name == "rail0")
    rail.unreturnable = ("is used by the multipath route 10.9.0.0/16",)
    daemon.node.refresh()
    rail.unreturnable = ()  # no news of that: the note is out of date
    reads = daemon.reads
    daemon.start()
    assert daemon.holders == {make_device("mlx5_1", ()).id}
    wait_until(lambda: daemon.reads > reads and daemon.node.is_current, "the node to be read anew")
    daemon.start(make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH))
    assert daemon.holders == {make_device(name, ()).id for name in ("mlx5_0", "mlx5_1")}


def test_a_node_that_was_read_just_now_is_not_read_again_before_a_refusal(daemon: Daemon, world: World) -> None:
    world.host.links.clear()
    daemon.node.refresh()
    reads, placer = daemon.reads, daemon.engine._placer
    asked = placer.asked(make_pod(), requested(ONE))
    assert asked is not None
    refusal(PlacementError, lambda: placer.choose(make_pod(), asked, Asker(), None))
    assert daemon.reads == reads


def test_who_has_only_a_claim_that_asks_for_devices_asks_for_them(node: Node) -> None:
    placer, pod = node.engine._placer, make_pod()
    node.specify(spec(NIC, 0, keys=MOVE))
    assert placer.asked(pod, NOTHING_REQUESTED) is None
    node.kubelet.give(pod, "trainer", NIC)
    asked = placer.asked(pod, NOTHING_REQUESTED)
    assert asked is not None
    (placed,) = placer.choose(pod, asked, Asker(), None).placed
    assert [device.name for device in placed.devices] == ["mlx5_0"]
    assert placed.admitted.request.cdi_device == NIC
    assert node.holders == {"mlx5_0"}


def test_the_span_of_a_decision_says_what_was_chosen_and_why(daemon: Daemon) -> None:
    daemon.start()
    (span,) = [it for it in daemon.rig.spans.recent() if it.name == "place"]
    assert span.attributes["rdma.devices"] == "mlx5_0"
    assert span.attributes["reason"] == "mlx5_0: lowest index of 1 free"


def test_where_pods_may_have_claims_they_wait_for_the_specs_that_tell_it(world: World, tmp_path: Path) -> None:
    reading = Future[None]()

    def unread(daemon: Daemon) -> Others:
        specs = SpecCache(
            node=lambda: daemon.node.current,
            registry=lambda: daemon.registry,
            prefix=PREFIX,
            reread=lambda: reading,
            is_ready=False,
        )
        return Others(specs=specs, rereads=(lambda: reading,))

    with daemon_on(world, tmp_path, make_others=unread) as made:
        placer = made.engine._placer
        made.start(annotations={})  # without such a pool nobody waits
        placer.await_specs(make_pod(), time.monotonic())
        claims = Pool(name="nics", modes=(Mode.SHARED,), door=PoolDoor.CLAIMS)
        made.engine.offering.policy = policy_of((claims,), (), allow_default_pool=False)
        assert made.engine.may_ask({}, "u1")
        assert refusal(NotReadyError, lambda: made.start(annotations={}, seconds=0.05)).code is ErrorCode.NOT_READY
        refusal(NotReadyError, lambda: placer.await_specs(make_pod(), time.monotonic()))
        made.engine.specs.set_ready()
        assert not made.engine.may_ask({}, "u1")
        made.start(annotations={})
        # A claim is prepared, and its spec is not read yet.
        made.engine.specs.expect(["rdma.noderesource.dev/claim=one"], "first allocation")
        assert made.engine.may_ask({}, "u1")
        assert refusal(NotReadyError, lambda: made.start(annotations={}, seconds=0.05)).code is ErrorCode.NOT_READY
        reading.set_result(None)
        made.start(annotations={})
        assert not made.engine.may_ask({}, "u1")


@pytest.mark.parametrize(("is_outdated", "reads"), [(True, 1), (False, 0)])
def test_a_pod_is_placed_by_the_ports_as_they_are_where_the_kernel_gives_no_news_of_them(
    daemon: Daemon, is_outdated: bool, reads: int
) -> None:
    (device,) = daemon.node.current.devices
    ports = tuple(replace(port, link_layer=LinkLayer.INFINIBAND, state="ACTIVE") for port in device.ports)
    silent = replace(device, netdevs=(), ports=ports)
    daemon.node.current = replace(daemon.node.current, devices=(silent,))
    daemon.node.is_outdated = lambda: is_outdated
    before = daemon.reads
    chosen = daemon.engine._placer.choose(
        make_pod(), asked_of(daemon), Asker(namespace="default"), time.monotonic() + SOON
    )
    assert (chosen.placed[0].devices == (silent,), daemon.reads - before) == (not is_outdated, reads)


def test_no_port_is_looked_at_where_netdevs_tell_of_it(daemon: Daemon) -> None:
    daemon.node.is_outdated = lambda: True
    before = daemon.reads
    daemon.start()
    assert daemon.reads == before


def asked_of(daemon: Daemon) -> Asked:
    asked = daemon.engine._placer.asked(make_pod(), requested(ONE))
    assert asked is not None
    return asked

"""Whatever ends at whatever boundary: nothing is lost, nothing has two owners, and the host is as it was before.

Half of the pods, by the seed, have the guard (hooks/). The others may start without what they ask for while nri-rdma is
dead; then that is told.
"""

import random
import subprocess
from collections.abc import Collection
from itertools import cycle

import pytest

from tests.faults.arena import Arena, delete_link, host_name, is_about
from tests.faults.places import BACK, EVERYWHERE, THERE, Place, Way
from tests.faults.tally import Outcome
from tests.rig.cri import Sandbox
from tests.rig.deadline import wait_until

pytestmark = [pytest.mark.root, pytest.mark.runtime]
WITHOUT_ROLLBACK = (*THERE, *BACK)
CONFIRMED = Place(way=Way.THERE, name="after resolve-numbers")
NUMBERS = ("EBUSY", "EPERM", "ENOBUFS")
RUNTIME_DEAD = "[Ss]ocket closed|[Cc]onnection reset|[Bb]roken pipe|[Cc]onnection refused"
"""How gRPC says that its server ended."""
SHIM_DEAD = (
    "sandbox container .* is not running|no running task found|ttrpc: closed|/run/containerd/s/.*: connection refused"
)
"""How containerd says that it cannot start a container in a sandbox that ended."""


@pytest.mark.parametrize("place", EVERYWHERE, ids=str)
def test_the_daemon_is_killed(arena: Arena, place: Place, choose: random.Random) -> None:
    pod = arena.started_pod() if place.way is Way.BACK else None
    arena.plant(place, "kill")
    asked = arena.run_pod() if pod is None else arena.stop_pod(pod)
    between = arena.await_daemon_end()
    arena.tally.kills_between_steps += between
    pod = pod or arena.answer(asked)
    outcome = Outcome.COMPLETE if place.way is Way.BACK else Outcome.REFUSED
    is_made_meanwhile = pod is not None and place.way is not Way.BACK and choose.random() < 0.5
    if pod is not None and is_made_meanwhile:
        outcome = arena.outcome(pod)
        assert outcome is (Outcome.REFUSED if arena.guarded else Outcome.WITHOUT), "nobody gave it anything"
    arena.answer(asked)
    arena.daemon.start()
    if outcome is Outcome.WITHOUT:
        arena.assert_reported()
    if pod is not None and place.way is not Way.BACK:
        later = arena.outcome(pod, "later")
        outcome = outcome if is_made_meanwhile else later
        assert later is not Outcome.WITHOUT
    # The kernel ends virtual netdevs with the namespace that they are in; the lab has those that it brings home.
    lost = [it.name for it in arena.fabric.node.netdevs if place.way is Way.BACK]
    _end(arena, "daemon killed, on the way " + place.way, outcome, lost)


@pytest.mark.parametrize("place", WITHOUT_ROLLBACK, ids=str)
def test_the_runtime_is_killed(arena: Arena, place: Place) -> None:
    synchronizations = arena.daemon.synchronizations
    with arena.paused_at(place) as asked:
        arena.runtime.kill()
        arena.answer(asked, RUNTIME_DEAD)
    arena.restart_runtime()
    arena.daemon.wait_synchronized(times=synchronizations + 1)
    pod = arena.listed_pod() if place.way is Way.THERE else None
    outcome = Outcome.COMPLETE if place.way is Way.BACK else Outcome.FAILED
    if pod is not None:
        outcome = arena.outcome(pod, "later")
    if outcome is Outcome.WITHOUT:
        arena.assert_reported()
    _end(arena, "runtime killed, on the way " + place.way, outcome)


@pytest.mark.parametrize("place", THERE, ids=str)
def test_the_shim_is_killed(arena: Arena, place: Place) -> None:
    with arena.paused_at(place) as asked:
        assert arena.kill_shims()
    _finish(arena, place, arena.answer(asked, SHIM_DEAD), "shim killed", theirs=SHIM_DEAD)


@pytest.mark.parametrize("place", BACK[:1], ids=["attached"])
def test_the_shim_of_a_pod_that_runs_is_killed(arena: Arena, place: Place) -> None:
    """When the runtime stops a pod, its shim has ended before anything is given back."""
    arena.started_pod()
    assert arena.kill_shims()
    _finish(arena, place, None, "shim of a running pod killed")


@pytest.mark.parametrize("place", [it for it in WITHOUT_ROLLBACK if not it.is_answered], ids=str)
def test_the_namespace_of_the_pod_is_deleted(arena: Arena, place: Place) -> None:
    """Until the stop is answered: then the runtime deletes it itself."""
    with arena.paused_at(place) as asked:
        netns = arena.pod_netns()
        subprocess.run(["umount", "--lazy", str(netns)], check=True)
        netns.unlink()
    _finish(arena, place, arena.answer(asked), "namespace deleted")


@pytest.mark.parametrize("place", [*THERE[: THERE.index(CONFIRMED)], *BACK], ids=str)
def test_a_netdev_is_deleted(arena: Arena, place: Place, choose: random.Random) -> None:
    """Until the attach is confirmed. What goes later goes from a pod that has it."""
    netdev = choose.choice(arena.fabric.node.netdevs)
    with arena.paused_at(place) as asked:
        assert delete_link(None, netdev) or delete_link(arena.pod_netns(), netdev)
    _finish(arena, place, arena.answer(asked), "netdev deleted", lost=[netdev.name])


@pytest.mark.parametrize(("place", "number"), list(zip(EVERYWHERE, cycle(NUMBERS), strict=False)), ids=str)
def test_the_kernel_refuses_once(arena: Arena, place: Place, number: str) -> None:
    pod = arena.started_pod() if place.way is Way.BACK else None
    arena.plant(place, f"error:{number}")
    asked = arena.run_pod() if pod is None else arena.stop_pod(pod)
    outcome = _finish(arena, place, arena.answer(asked), f"{number} once")
    # An attach that was undone is tried again. On the way of the rollback the second journal is that of a second try.
    is_undo = place.way is Way.ROLLBACK and "write-journal" not in place.name
    assert outcome is (Outcome.REFUSED if is_undo or place.name.endswith("plan") else Outcome.COMPLETE)


@pytest.mark.parametrize("place", [it for it in THERE if it.name.startswith("after") and "netdev" in it.name], ids=str)
def test_the_kernel_refuses_for_ever(arena: Arena, place: Place) -> None:
    arena.faults.plant(f"always*{place.name}=error:EBUSY")
    pod = arena.answer(arena.run_pod())
    outcome = Outcome.REFUSED if pod is None else arena.outcome(pod)
    assert outcome is Outcome.REFUSED
    arena.faults.plant()
    _end(arena, "EBUSY for ever", outcome)


@pytest.mark.parametrize("place", [it for it in THERE if it.name.startswith("before move-netdev")], ids=str)
def test_the_name_of_a_netdev_is_taken_in_the_pod(arena: Arena, place: Place) -> None:
    with arena.paused_at(place) as asked:
        name = f"rdma{place.name[-1]}"
        command = ["ip", "link", "add", name, "type", "veth", "peer", "name", "beside"]
        subprocess.run(["nsenter", f"--net={arena.pod_netns()}", *command], check=True)
    _finish(arena, place, arena.answer(asked), "name taken in the pod")


@pytest.mark.parametrize("place", [it for it in BACK if it.name.startswith("before undo move-netdev")], ids=str)
def test_the_name_of_a_netdev_is_taken_on_the_host(arena: Arena, place: Place) -> None:
    name = f"port{place.name[-1]}"
    with arena.paused_at(place) as asked:
        subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", "beside"], check=True)
    arena.answer(asked)
    netdev = arena.fabric.node.netdev(name)
    wait_until(lambda: host_name(netdev) not in {"", name}, "the netdev to be home under another name")
    subprocess.run(["ip", "link", "delete", name], check=True)
    _finish(arena, place, None, "name taken on the host")


@pytest.mark.parametrize("place", WITHOUT_ROLLBACK[::6], ids=str)
def test_a_second_daemon_is_refused_and_names_the_first(arena: Arena, place: Place) -> None:
    with arena.paused_at(place) as asked:
        done = arena.daemon.another()
        assert done.returncode == 1
        assert "nri-rdma: STATE-LOCKED: " in done.stderr
        assert f"(pid {arena.daemon.pid})" in done.stderr
    _finish(arena, place, arena.answer(asked), "second daemon")


def _finish(
    arena: Arena, place: Place, pod: Sandbox | None, what: str, *, lost: Collection[str] = (), theirs: str = ""
) -> Outcome:
    """With the daemon alive: a pod is complete or refused; nothing is left of it, and the next one is complete.

    `theirs` is how the runtime says that the test broke the pod; `lost` are netdevs that have ended with it.
    """
    outcome = Outcome.COMPLETE if place.way is Way.BACK else Outcome.REFUSED
    if pod is not None and place.way is not Way.BACK:
        outcome = arena.outcome(pod, theirs=theirs)
    assert outcome is not Outcome.WITHOUT
    _end(arena, what, outcome, lost)
    return outcome


def _end(arena: Arena, what: str, outcome: Outcome, lost: Collection[str] = ()) -> None:
    """Whatever became of the pod: nothing is left of it, and the next one is complete."""
    arena.count(what, outcome)
    arena.assert_owned_once(lost=lost)
    arena.delete_pods()
    ended = [it.name for it in arena.fabric.node.netdevs if it.name in lost and arena.is_gone(it)]
    arena.assert_given_back(but=is_about(*ended))
    arena.repair()
    arena.assert_next_is_complete()

"""What udev and networkd undo after a return is restored once more, and no pod takes home what they have half done."""

import errno
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from nri_rdma.attach.plan import NetdevMove
from nri_rdma.attach.port import KernelError, Namespace
from nri_rdma.attach.second_look import PAUSES_S, SecondLooks
from nri_rdma.model.link import LinkState
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import Address, FakeKernel, Link, World
from tests.unit.attach.builders import make_pod
from tests.unit.rigs.attachments import SOON, Rig, make_world, placed_on

SECOND_POD = "/run/netns/pod-2"
BY_HAND = Address(interface=IPv4Interface("192.0.2.9/24"))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A daemon on a host where somebody else configures netdevs, too."""
    made = Rig(state=tmp_path, world=make_world(physical=True), managed=True)
    _rail(made.world).add_address(BY_HAND)
    yield made
    made.close()


def test_what_others_undo_when_a_netdev_comes_home_is_restored_after_two_seconds(rig: Rig) -> None:
    before = rig.world.snapshot()
    _give_and_take_back(rig)
    _configure_as_others_do(rig.world)
    assert rig.world.snapshot() != before
    assert rig.clock.wait_for_one() == PAUSES_S[0] == 2
    _pass_one(rig)
    assert rig.world.snapshot() == before
    assert rig.clock.pending == []


def test_a_netdev_that_is_as_it_was_is_left_alone(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    before = rig.world.snapshot()
    caplog.set_level("INFO")
    _give_and_take_back(rig)
    _pass_one(rig)
    assert rig.world.snapshot() == before
    assert "restored again" not in caplog.text


def test_a_pod_that_comes_sooner_does_not_take_home_what_others_have_half_configured(rig: Rig) -> None:
    before = rig.world.snapshot()
    _give_and_take_back(rig)
    _configure_as_others_do(rig.world)
    rig.world.add_namespace(SECOND_POD)
    pod = make_pod("sandbox-2", path=SECOND_POD)
    rig.sandboxes.begin(pod, placed_on(rig.world, "rail0"), None).attach_done.result(SOON)
    assert rig.clock.pending == []
    _end(rig, "sandbox-2")
    assert rig.world.snapshot() == before


def test_a_netdev_that_somebody_took_away_meanwhile_is_not_looked_for(rig: Rig) -> None:
    _give_and_take_back(rig)
    rig.world.host.links.clear()
    _pass_one(rig)
    assert rig.clock.pending == []


def test_a_look_that_fails_is_taken_again_and_in_the_end_told(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    moves = _moves_of_one_that_came_home(rig)
    kernel, workers = _Blind(rig.world), _Remembering(1)
    SecondLooks(kernel, workers, rig.clock).expect(moves)
    for pause in PAUSES_S:
        assert rig.clock.wait_for_one() == pause
        rig.clock.pass_one()
        workers.given[-1].result(SOON)
    assert rig.clock.pending == []
    assert caplog.text.count("the host is not as before") == len(PAUSES_S)
    workers.close()


def test_a_pod_whose_netdev_cannot_be_looked_at_waits_for_the_look(rig: Rig) -> None:
    """Otherwise it would take home what others have half configured."""
    moves = _moves_of_one_that_came_home(rig)
    before = rig.world.snapshot()
    kernel = _Blind(rig.world)
    looks = SecondLooks(kernel, rig.workers, rig.clock)
    looks.expect(moves)
    _configure_as_others_do(rig.world)
    with pytest.raises(KernelError, match="read link"):
        looks.take_now({moves[0].link.ifindex})
    assert len(rig.clock.pending) == 1
    kernel.is_blind = False
    looks.take_now({moves[0].link.ifindex})
    assert (rig.world.snapshot(), rig.clock.pending) == (before, [])


def test_a_pod_does_not_wait_for_the_look_at_another_netdev(rig: Rig) -> None:
    moves = _moves_of_one_that_came_home(rig)
    kernel = _Slow(rig.world)
    looks = SecondLooks(kernel, rig.workers, rig.clock)
    looks.expect(moves)
    rig.clock.pass_one()
    assert kernel.asked.wait(SOON)
    others = threading.Thread(target=looks.take_now, args=({moves[0].link.ifindex + 1},))
    own = threading.Thread(target=looks.take_now, args=({moves[0].link.ifindex},))
    others.start()
    own.start()
    others.join(SOON)
    assert (others.is_alive(), own.is_alive()) == (False, True)
    kernel.answers.set()
    own.join(SOON)
    assert not own.is_alive()


def test_a_netdev_that_is_expected_twice_is_looked_at_once(rig: Rig) -> None:
    moves = _moves_of_one_that_came_home(rig)
    looks = SecondLooks(rig.fake, rig.workers, rig.clock)
    for _ in range(2):
        looks.expect(moves)
    assert len(rig.clock.pending) == 1
    looks.close()
    assert rig.clock.pending == []


def test_the_end_of_the_daemon_takes_no_more_looks(rig: Rig) -> None:
    _give_and_take_back(rig)
    rig.clock.wait_for_one()
    rig.close()
    assert rig.clock.pending == []


def test_a_look_whose_time_comes_as_the_daemon_ends_is_not_taken(rig: Rig) -> None:
    _give_and_take_back(rig)
    _configure_as_others_do(rig.world)
    as_others_have_it = rig.world.snapshot()
    ((_, look),) = rig.clock.pending
    rig.work.close()
    look()
    rig.workers.submit(f"second look at {_ifindex(rig)}", lambda: None).result(SOON)
    assert rig.world.snapshot() == as_others_have_it


def test_where_nobody_else_configures_netdevs_there_is_no_second_look(tmp_path: Path) -> None:
    rig = Rig(state=tmp_path, world=make_world(physical=True))
    _give_and_take_back(rig)
    assert rig.clock.pending == []
    rig.close()


class _Blind(FakeKernel):
    """A kernel whose links cannot be read."""

    is_blind = True

    def capture(
        self, namespace: Namespace, ifindexes: Collection[int], *, unreturnable: bool = False
    ) -> Mapping[int, LinkState]:
        if self.is_blind:
            raise KernelError("read link", errno.ENOBUFS)
        return super().capture(namespace, ifindexes, unreturnable=unreturnable)


class _Slow(FakeKernel):
    """A kernel whose driver answers only when it is told to."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.asked, self.answers = threading.Event(), threading.Event()

    def capture(
        self, namespace: Namespace, ifindexes: Collection[int], *, unreturnable: bool = False
    ) -> Mapping[int, LinkState]:
        self.asked.set()
        assert self.answers.wait(SOON)
        return super().capture(namespace, ifindexes, unreturnable=unreturnable)


class _Remembering(Workers):
    """Workers that remember what they were given."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.given: list[Future[None]] = []

    def submit(self, key: str, work: Callable[[], None], *, urgent: bool = False) -> Future[None]:
        self.given.append(super().submit(key, work, urgent=urgent))
        return self.given[-1]


def _rail(world: World) -> Link:
    (link,) = world.host.links.values()
    return link


def _moves_of_one_that_came_home(rig: Rig) -> tuple[NetdevMove, ...]:
    """Of a netdev that comes home; no look at it is due."""
    attachment = rig.sandboxes.begin(make_pod(), placed_on(rig.world, "rail0"), None)
    attachment.attach_done.result(SOON)
    assert attachment.now.record is not None
    moves = attachment.now.record.plan.moves
    _end(rig, "sandbox-1")
    rig.clock.pending.clear()
    return moves


def _give_and_take_back(rig: Rig) -> None:
    rig.sandboxes.begin(make_pod(), placed_on(rig.world, "rail0"), None).attach_done.result(SOON)
    _end(rig, "sandbox-1")


def _end(rig: Rig, sandbox_id: str) -> None:
    done = rig.sandboxes.end(sandbox_id)
    assert done is not None
    done.result(SOON)


def _configure_as_others_do(world: World) -> None:
    """udev sets what its .link file says, networkd takes away what its .network file does not."""
    link = _rail(world)
    link.mtu, link.txqlen = 9000, 700
    link.remove_address(next(it for it in link.addresses if it.interface == BY_HAND.interface))


def _pass_one(rig: Rig) -> None:
    """The time of a look has come, and it is taken."""
    rig.clock.pass_one()
    wait_for([rig.workers.submit(f"second look at {_ifindex(rig)}", lambda: None)], timeout=SOON)


def _ifindex(rig: Rig) -> int:
    return next(iter(rig.world.host.links), 2)

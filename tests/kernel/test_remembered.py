"""What a sandbox waits for is answered from the last reading as long as the kernel has told of no change since."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from nri_rdma.attach.port import Survey
from nri_rdma.decide.inventory import in_use_reasons, matters
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.host.netlink.events.linkevents import LinkEvents, open_link_socket
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.model.device import Node, RdmaNetns
from nri_rdma.model.usage import HostSocket, HostUse, Watched
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.contract.machines import HOST, LinuxMachine
from tests.kernel.inside import in_namespace
from tests.rig.deadline import wait_until
from tests.rig.linkops import set_link

pytestmark = pytest.mark.root
MAC = "02:11:00:00:00:{:02x}"
ADDRESS = "10.7.0.1"
RAILS = ("rail0", "rail1")
SEED = 4711
CHANGES, UNREAD = 60, 6
NOTHING = Node(devices=(), gpus=(), rdma_cm=None, rdma_netns=RdmaNetns.NONE, rdma_cgroup=False)


class Host:
    """A host with two rails, its kernel, and whether that is to take it for unchanged."""

    def __init__(self, linux: LinuxMachine) -> None:
        self.linux = linux
        self.rails = {name: linux.add_link(name, MAC.format(number)) for number, name in enumerate(RAILS)}
        self.is_as_read: Callable[[], bool] = lambda: True
        self.kernel = LinuxKernel(str(linux.path(HOST)), is_as_read=self._is_as_read)

    def _is_as_read(self) -> bool:
        return self.is_as_read()

    def read(self) -> HostUse:
        return self.kernel.host_use(netdevs=RAILS)

    def survey(self) -> Survey:
        return self.kernel.survey(self.rails.values())

    def sockets(self) -> tuple[HostSocket, ...]:
        return self.kernel.survey(self.rails.values(), sockets=True).use.sockets

    def asked_anew(self) -> Survey:
        remembers, self.is_as_read = self.is_as_read, lambda: False
        try:
            return self.survey()
        finally:
            self.is_as_read = remembers

    def close(self) -> None:
        self.kernel.host.close()


@pytest.fixture
def host(linux: LinuxMachine) -> Iterator[Host]:
    made = Host(linux)
    yield made
    made.close()


def reasons(survey: Survey) -> list[tuple[str, ...]]:
    return [in_use_reasons(link, survey.use) for link in survey.links.values()]


@pytest.mark.parametrize(
    "commands",
    [
        (),
        ("link add br0 type bridge", "link set rail0 master br0"),
        ("link add link rail1 name child type macvlan",),
        ("address add 10.7.0.1/24 dev rail0", "route add default via 10.7.0.9 dev rail0"),
        ("address add 10.7.0.1/24 dev rail0", "route add 10.9.0.0/16 dev rail1 src 10.7.0.1"),
        (
            "address add 10.7.0.1/24 dev rail0",
            "address add 10.8.0.1/24 dev rail1",
            "route add 10.9.0.0/16 nexthop via 10.7.0.9 nexthop via 10.8.0.9",
        ),
    ],
    ids=["nothing", "enslaved", "a child", "a default route", "a source address", "a path"],
)
def test_it_is_what_asking_anew_tells(host: Host, commands: tuple[str, ...]) -> None:
    for rail in RAILS:
        host.linux.set(rail, up=True)
    wait_until(lambda: all(host.linux.see()[it].routes for it in host.rails.values()), "the link-local routes")
    for command in commands:
        host.linux.ip(HOST, command)
    read = host.read()
    remembered, anew = host.survey(), host.asked_anew()
    assert remembered.links == anew.links
    assert [link for link in read.links if link.ifindex in anew.links] == list(anew.links.values())
    assert reasons(remembered) == reasons(anew)
    assert replace(remembered.use, links=()) == replace(anew.use, links=())
    assert bool(commands) == any((*reasons(anew), *(link.unreturnable for link in anew.links.values())))


def test_it_is_remembered_indeed_and_only_while_nothing_changes(host: Host) -> None:
    host.read()
    host.linux.ip(HOST, "link add br0 type bridge")
    host.linux.ip(HOST, "link set rail0 master br0")
    assert reasons(host.survey()) == [(), ()]
    host.is_as_read = lambda: False
    assert reasons(host.survey())[0] == ("rail0 is enslaved to br0",)


@pytest.mark.parametrize("is_as_read", [True, False], ids=["remembered", "asked anew"])
def test_sockets_are_looked_for_whenever_they_are_asked_for_as_the_kernel_gives_no_news_of_them(
    host: Host, is_as_read: bool
) -> None:
    host.linux.set("rail0", up=True)
    host.linux.add_address("rail0", f"{ADDRESS}/24")
    host.read()
    host.is_as_read = lambda: is_as_read
    assert host.sockets() == ()
    with in_namespace(host.kernel.host.fd, lambda: socket.create_server((ADDRESS, 0))) as server:
        (found,) = host.sockets()
        assert (str(found.address), found.port) == server.getsockname()
        assert host.survey().use.sockets == ()  # a sandbox waits for this one
    assert host.sockets() == ()


def test_a_link_that_was_not_read_is_asked_for(host: Host) -> None:
    host.read()
    other = host.linux.add_link("other0", MAC.format(9))
    assert set(host.kernel.survey({other}).links) == {other}


class Followed:
    """The host as a daemon follows it: readings when the kernel tells of changes."""

    def __init__(self, host: Host) -> None:
        self._workers = Workers(1)
        self._listeners = Listeners()
        self.readings = 0
        self._to = Watched(ifindexes=frozenset(host.rails.values()), names=frozenset(RAILS))
        self._host = host
        self._events: LinkEvents | None = None
        self.source = NodeCache(self._read)
        self.events = self._events = LinkEvents(
            self._listeners,
            in_namespace(host.kernel.host.fd, open_link_socket),
            lambda change: matters(change, self._to),
            self._read_later,
        )
        host.is_as_read = self.is_as_read

    def _read(self) -> Node:
        if self._events is not None:
            self._events.take_in()
        self._host.read()
        self.readings += 1
        return NOTHING

    def delay(self, seconds: float) -> None:
        """Who reads has something else to do for so long."""
        self._workers.submit("else", lambda: time.sleep(seconds))

    def _read_later(self) -> None:
        self.source.refresh_soon(self._workers)

    def is_as_read(self) -> bool:
        return self.events.is_all_told() and self.source.is_current

    def stop_listening(self) -> None:
        if self._events is not None:
            self._events = None
            self.events.close()

    def close(self) -> None:
        self.stop_listening()
        self._listeners.close()
        self._workers.close()


@pytest.fixture
def followed(host: Host) -> Iterator[Followed]:
    made = Followed(host)
    made.source.refresh()
    yield made
    made.close()


def test_what_has_changed_a_moment_ago_is_never_answered_from_memory(host: Host, followed: Followed) -> None:
    """Whatever the followers are at: they wait for the end of a burst, for their turn, read, or have read."""
    rail, pauses = host.rails["rail0"], random.Random(SEED)
    from_memory = 0
    for mtu in range(1400, 1400 + CHANGES):
        followed.delay(pauses.uniform(0, 0.03))
        set_link(host.kernel, host.kernel.host, rail, mtu=mtu)
        end = time.monotonic() + pauses.uniform(0, 0.15)
        while True:
            assert host.survey().links[rail].mtu == mtu
            from_memory += followed.is_as_read()
            if time.monotonic() > end:
                break
    assert from_memory, "memory was never used"


def test_nor_is_it_while_the_news_lie_unread(host: Host, followed: Followed) -> None:
    """Other threads have the interpreter, and who listens has not had its turn."""
    rail, done = host.rails["rail0"], threading.Event()

    def hog() -> None:
        while not done.is_set():
            pass

    hogs = [threading.Thread(target=hog) for _ in range(2)]
    for thread in hogs:
        thread.start()
    try:
        for mtu in range(1400, 1400 + UNREAD):
            wait_until(followed.is_as_read, "it to be read")
            set_link(host.kernel, host.kernel.host, rail, mtu=mtu)
            assert host.survey().links[rail].mtu == mtu
    finally:
        done.set()
        for thread in hogs:
            thread.join()


def test_who_reads_everything_answers_all_that_was_told_before(host: Host, followed: Followed) -> None:
    before = followed.readings
    host.linux.ip(HOST, "link set rail0 mtu 1400")
    assert not followed.is_as_read()
    followed.source.refresh()
    assert followed.is_as_read()
    time.sleep(1.0)
    assert followed.readings == before + 1


def test_what_cannot_be_read_is_not_known(host: Host, followed: Followed) -> None:
    assert followed.is_as_read()
    host.close()
    with pytest.raises(Exception, match="the node cannot be read"):
        followed.source.refresh()
    assert not followed.is_as_read()


def test_nothing_is_remembered_when_nobody_listens_any_more(host: Host, followed: Followed) -> None:
    """The daemon ends, and a plan or a reading is still under way."""
    assert followed.is_as_read()
    followed.stop_listening()
    assert not followed.is_as_read()
    followed.events.take_in()
    followed.source.refresh()
    assert not followed.is_as_read()
    host.linux.ip(HOST, "link set rail0 mtu 1400")
    assert host.survey().links[host.rails["rail0"]].mtu == 1400

"""A journal that an earlier release wrote is taken over by this daemon, and all devices of the host come home.

The recordings are in tests/recorded. The links are put where that release had left them, by `ip`; the journal gets this
machine's values in the place of the recording machine's; then the daemon starts as its user starts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any  # Any: NRI's messages

import pytest

from tests.fakes.runtime import FakeRuntime
from tests.recorded.recording import Here, Pod, Recording, in_place, record_in, recordings
from tests.recorded.serving import RUNTIME, SOON_S, WorldsDaemon, write_specs
from tests.recorded.world import Seen, World, boot_id, cookie_of, links_of, make_world, start_of
from tests.rig import hostlook
from tests.rig.control import ask_status
from tests.rig.deadline import DeadlineError, wait_until

pytestmark = pytest.mark.root


class Left:
    """The world of a recording as its daemon had left it when it was killed; `before` is the host before all of it."""

    def __init__(self, recording: Recording, world: World) -> None:
        self.recording, self.world = recording, world
        write_specs(world, recording.cdi)
        world.set_sysctls(recording.sysctls())
        self.before = hostlook.take_settled(world.host)
        self._home = {link.mac: link for link in links_of(world.host)}
        self._heres = {pod.sandbox_id: self._put(pod) for pod in recording.pods}

    def _put(self, pod: Pod) -> Here:
        if not pod.eth0:
            pid = self.world.add_process()
            return Here(boot_id=boot_id(), netns=None, cookie=0, process=(pid, start_of(pid)), pod_ifindexes={})
        netns = self.world.add_pod(pod.name, pod.eth0)
        numbers = {
            self._home[link.mac].ifindex: self.world.move(self._home[link.mac].name, netns, link)
            for link in pod.links
            if link.mac in self._home
        }
        return Here(boot_id=boot_id(), netns=netns, cookie=cookie_of(netns), process=(0, 0), pod_ifindexes=numbers)

    def message(self, name: str) -> Any:
        """A pod as a runtime of this machine tells it."""
        pod = self.recording.pod(name)
        here = self._heres[pod.sandbox_id]
        return pod.message(here.netns, here.process[0])

    def links(self) -> dict[str, set[tuple[object, ...]]]:
        """What is where, "" is the host: of the host's links all but their numbers in pods."""
        places = {"": self.world.host} | {
            pod.name: here.netns
            for pod in self.recording.pods
            if (here := self._heres[pod.sandbox_id]).netns is not None
        }
        return {name: set(map(_facts, self._own(links_of(netns)))) for name, netns in places.items()}

    def links_then(self) -> dict[str, set[tuple[object, ...]]]:
        """The same as it was recorded."""
        places = {"": self.recording.host} | {pod.name: pod.links for pod in self.recording.pods if pod.eth0}
        return {name: set(map(_facts, self._own(links))) for name, links in places.items()}

    def rails(self) -> dict[str, set[str]]:
        """The names that the host's links have there, by the pod that has any now."""
        names = {mac: link.name for mac, link in self._home.items()}
        found = {
            pod.name: {names[link.mac] for link in self._own(links_of(netns))}
            for pod in self.recording.pods
            if (netns := self._heres[pod.sandbox_id].netns) is not None
        }
        return {name: rails for name, rails in found.items() if rails}

    def write_journal(self, folder: Path) -> None:
        """The release's journal, with the values of this machine."""
        folder.mkdir(mode=0o700, parents=True)
        for name, data in self.recording.journal.items():
            here = self._heres[record_in(data)["pod"]["sandbox_id"]]
            (folder / name).write_bytes(in_place(data, here))

    def _own(self, links: tuple[Seen, ...]) -> tuple[Seen, ...]:
        return tuple(link for link in links if link.mac in self._home)


def _facts(link: Seen) -> tuple[object, ...]:
    return link.name, link.mac, link.mtu, link.up, link.addresses


@pytest.fixture(params=recordings(), ids=lambda it: it.release)
def left(request: pytest.FixtureRequest) -> Iterator[Left]:
    """The machine with what the release has left on it."""
    recording: Recording = request.param
    with make_world(recording.node) as world:
        yield Left(recording, world)


@pytest.fixture
def runtime(left: Left) -> Iterator[FakeRuntime]:
    with FakeRuntime(left.world.nri_socket, version=RUNTIME) as made:
        yield made


@pytest.fixture
def daemon(left: Left, runtime: FakeRuntime) -> Iterator[WorldsDaemon]:
    """This daemon, which is not started; the journal is the release's."""
    made = WorldsDaemon(left.world, runtime)
    left.write_journal(made.journal)
    yield made
    made.stop()


def states(daemon: WorldsDaemon) -> dict[str, str]:
    """What the daemon says of each sandbox."""
    return {it["pod"].partition("/")[2]: it["state"] for it in ask_status(daemon.control)["sandboxes"]}


def await_states(daemon: WorldsDaemon, wanted: dict[str, str]) -> None:
    """Wait until the daemon has these sandboxes, in these states."""
    try:
        wait_until(lambda: states(daemon) == wanted, f"the sandboxes to be {wanted}", SOON_S)
    except DeadlineError as error:
        raise AssertionError(f"{error}, they are {states(daemon)}; the log:\n{daemon.log}") from None


def assert_home(left: Left, daemon: WorldsDaemon) -> None:
    """The host is as before, and the daemon has neither a record nor one that it could not read."""
    await_states(daemon, {})
    changed = hostlook.difference(left.before, hostlook.take_settled(left.world.host))
    assert not changed, changed
    assert left.rails() == {}
    assert list(daemon.journal.iterdir()) == []
    assert "set aside" not in daemon.log


def test_the_world_is_as_the_release_left_it(left: Left) -> None:
    assert left.links() == left.links_then()


def test_pods_keep_their_devices_and_all_come_home_with_their_ends(
    left: Left, runtime: FakeRuntime, daemon: WorldsDaemon
) -> None:
    """What was half done is done, or undone where its container has to come again."""
    runtime.pods = [left.message(pod.name) for pod in left.recording.pods]
    daemon.start()
    await_states(daemon, dict.fromkeys(("exclusive", "shared", "hostnet", "planned", "half", "late"), "attached"))
    assert left.rails() == {
        "exclusive": {"rail0", "rail1"},
        "planned": {"rail3"},
        "half": {"rail4", "rail5"},
        "late": {"rail8"},
    }
    assert given(left, runtime, "exclusive", "trainer") == {"uverbs0", "uverbs1", "rdma_cm"}
    assert given(left, runtime, "exclusive", "side") == {"uverbs1", "rdma_cm"}
    assert given(left, runtime, "shared", "main") == {"uverbs2", "rdma_cm"}
    assert given(left, runtime, "hostnet", "main") == {"uverbs2", "rdma_cm"}
    assert given(left, runtime, "planned", "main") == {"uverbs3", "rdma_cm"}
    assert given(left, runtime, "half", "main") == {"uverbs4", "uverbs5", "rdma_cm"}
    for pod in left.recording.pods:
        runtime.stop_pod_sandbox(left.message(pod.name), timeout_s=SOON_S)
    assert_home(left, daemon)


def test_devices_of_pods_that_ended_while_no_daemon_ran_come_home(left: Left, daemon: WorldsDaemon) -> None:
    """The runtime knows none of the pods; their namespaces are still there."""
    daemon.start()
    assert_home(left, daemon)


def given(left: Left, runtime: FakeRuntime, name: str, container: str) -> set[str]:
    """The names of the nodes that a container of the pod gets."""
    pod = left.recording.pod(name)
    message = pod.container_message(next(it for it in pod.containers if it.name == container))
    answer = runtime.create_container(left.message(name), message)
    return {device.path.rpartition("/")[2] for device in answer.adjust.linux.devices}

"""The connection that a runtime leaves open for a plugin that it starts, and what is answered on it."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.doors.nri.identity import Identity
from nri_rdma.doors.nri.launched import Launched, inherited_socket
from nri_rdma.doors.nri.plugin import Plugin
from nri_rdma.doors.nri.runtime_link import Link
from nri_rdma.doors.nri.session import RegistrationError
from nri_rdma.errors import ErrorCode, NriRdmaError, RuntimeAnsweredError, SettingError
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.text.annotations import asks
from nri_rdma.ttrpc import Code, RpcError
from nri_rdma.wire.error import WireError
from tests.fakes.runtime import FakeRuntime
from tests.unit.rigs.inside_daemon import InsideDaemon

SOON = 20.0


class Process:
    """The door of a launched plugin in a thread of its own; its settings are a word that may be refused."""

    def __init__(self, inside: InsideDaemon) -> None:
        self.inside = inside
        self.connection, theirs = socket.socketpair()
        self.door = Launched(theirs, Identity(name="nri-rdma", index="90"), self._start, asks)
        self.sent: list[str] = []
        self.by = 0.0
        self.ended: list[BaseException | None] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.door.run()
        except (RegistrationError, WireError, OSError) as error:
            self.ended.append(error)
        else:
            self.ended.append(None)

    def _start(self, door: Launched, sent: str, by: float) -> Plugin:
        self.sent.append(sent)
        self.by = by
        if sent == "other":
            raise RuntimeAnsweredError(ErrorCode.STATE_LOCKED, "another daemon answers this runtime")
        if sent == "bad":
            raise SettingError(ErrorCode.SETTING, "bad = bad cannot be used", hint="mend it")
        return Plugin(self.inside.engine, self.inside.spans, lambda _facts: door.synchronized())

    def close(self) -> None:
        self.connection.close()
        self._thread.join(SOON)
        assert not self._thread.is_alive()


@pytest.fixture
def process(daemon: InsideDaemon) -> Iterator[Process]:
    made = Process(daemon)
    yield made
    made.close()


@pytest.fixture
def runtime() -> Iterator[FakeRuntime]:
    with TemporaryDirectory(prefix="nri-") as folder, FakeRuntime(Path(folder) / "nri.sock") as made:
        yield made


@pytest.mark.parametrize(
    ("request_timeout_ms", "seconds"), [(1000, 0.8), (0, 1.8)], ids=["told", "the usual one, not told"]
)
def test_the_daemon_is_made_of_what_configure_says_before_that_is_answered(
    process: Process, runtime: FakeRuntime, request_timeout_ms: int, seconds: float
) -> None:
    """Within the runtime's time-out, less 0.2 s for the way."""
    runtime.configuration.config = "settings"
    runtime.configuration.request_timeout = request_timeout_ms
    begun = time.monotonic()
    runtime.adopt(process.connection, SOON)
    assert process.sent == ["settings"]
    assert begun + seconds - 0.1 < process.by < time.monotonic() + seconds
    assert runtime.events == 0b101111
    runtime.call("Shutdown", nri.Empty())
    links = [process.door.link]
    process.close()
    assert process.ended == [None]
    assert [*links, process.door.link] == [Link.SYNCHRONIZED, Link.DISCONNECTED]


def test_settings_that_cannot_be_used_are_the_answer_to_configure(process: Process, runtime: FakeRuntime) -> None:
    runtime.configuration.config = "bad"
    with pytest.raises(RpcError, match="nri-rdma: SETTING: bad = bad cannot be used"):
        runtime.adopt(process.connection, SOON)


ASKS = {"rdma.noderesource.dev": "1"}


@pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])
def test_a_runtime_that_would_end_is_not_told_and_pods_that_ask_are_refused(
    process: Process, runtime: FakeRuntime, own_rpcs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """containerd before 1.7.26 does not start when a plugin that it has started answers Configure with an error."""
    runtime.configuration.config = "bad"
    runtime.configuration.request_timeout = 0
    runtime.own_rpcs = own_rpcs
    runtime.pods, runtime.sync_chunk = [nri.PodSandbox(id=name) for name in "abc"], 1
    runtime.adopt(process.connection, SOON)
    (told,) = (vars(it) for it in caplog.records if it.levelname == "CRITICAL")
    assert told["message"].startswith("not started, and an error would make this runtime exit")
    assert "SETTING: bad = bad cannot be used" in told["error"]
    assert runtime.events == 0b1001
    for pod, refused in ((nri.PodSandbox(id="s", annotations=ASKS), True), (nri.PodSandbox(id="t"), False)):
        for call in (
            lambda pod=pod: runtime.run_pod_sandbox(pod),
            lambda pod=pod: runtime.create_container(pod, nri.Container(id="c")),
        ):
            if refused:
                with pytest.raises(RpcError, match="nri-rdma: SETTING: bad = bad cannot be used"):
                    call()
            else:
                call()
    runtime.state_change(nri.STOP_POD_SANDBOX, nri.PodSandbox(id="s", annotations=ASKS))
    runtime.call("Shutdown", nri.Empty())


def test_pods_that_another_daemon_serves_are_left_to_it(process: Process, runtime: FakeRuntime) -> None:
    runtime.configuration.config = "other"
    runtime.configuration.request_timeout = 0
    runtime.adopt(process.connection, SOON)
    pod = nri.PodSandbox(id="s", annotations=ASKS)
    runtime.run_pod_sandbox(pod)
    assert not runtime.create_container(pod, nri.Container(id="c")).HasField("adjust")


def test_a_call_before_configure_is_refused_and_makes_no_daemon(process: Process, runtime: FakeRuntime) -> None:
    runtime.adopt(process.connection, SOON, synchronize=False, configure=False)
    with pytest.raises(RpcError, match="NOT-READY: CreateContainer came before Configure") as refused:
        runtime.create_container(nri.PodSandbox(id="s"), nri.Container(id="c"))
    assert refused.value.code == Code.UNAVAILABLE
    assert process.sent == []


def test_stop_ends_it_after_the_answers_that_are_owed(process: Process, runtime: FakeRuntime) -> None:
    runtime.adopt(process.connection, SOON)
    process.door.stop()
    runtime.wait_closed(SOON)
    process.close()
    assert process.ended == [None]


def test_the_connection_blocks_and_is_not_handed_on() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    theirs.set_inheritable(True)
    taken = inherited_socket(str(theirs.detach()))
    assert (taken.getblocking(), os.get_blocking(taken.fileno()), taken.get_inheritable()) == (True, True, False)
    ours.close()
    taken.close()


@pytest.mark.parametrize("number", ["", "three", "-1", "77777", "9" * 30, "3.0"])
def test_a_number_that_names_no_connection_says_so(number: str) -> None:
    with pytest.raises(NriRdmaError, match=f"NRI_PLUGIN_SOCKET='{number}' names no connection to the runtime: "):
        inherited_socket(number)


def test_a_file_is_no_connection(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(NriRdmaError, match="it is no socket"):
        inherited_socket(str(file.fileno()))

"""When the plugin connects again, on real sockets and a clock that nobody waits for."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.doors.nri import runner as module
from nri_rdma.doors.nri.plugin import Plugin
from nri_rdma.doors.nri.runner import Runner
from nri_rdma.doors.nri.runtime_link import Link
from nri_rdma.ttrpc.wire import Code, Request, ServerConnection
from nri_rdma.wire.mux import RUNTIME_SERVICE_CONN, MuxDecoder, encode_message
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.unit.rigs.inside_daemon import InsideDaemon

SOON = 20.0


class Line:
    """A runner in a thread of its own, whose waits take no time. `now` counts its seconds."""

    def __init__(self, inside: InsideDaemon, path: Path) -> None:
        self.path = path
        self.now = 0.0
        self.waits: list[float] = []
        self.at_wait: Callable[[], None] = lambda: None
        self.runner = Runner(
            str(path),
            lambda _pid: Plugin(inside.engine, inside.spans, lambda _facts: self.runner.synchronized()),
            name="nri-rdma",
            index="90",
            clock=lambda: self.now,
            wait=self._wait,
            quiet_s=0.01,
        )
        self._thread = threading.Thread(target=self.runner.run)

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)
        self.at_wait()

    def start(self) -> None:
        self._thread.start()

    def run_until(self, waits: int) -> None:
        """Run it here until it has waited that often."""
        self.at_wait = lambda: self.runner.stop() if len(self.waits) == waits else None
        self.runner.run()

    def stop(self) -> None:
        self.runner.stop()
        if self._thread.ident is not None:
            self._thread.join(SOON)
            assert not self._thread.is_alive()


class Refuser:
    """A listener that hangs up on everybody, and remembers when they came."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.came: list[float] = []
        self._kept: list[socket.socket] = []
        self.still_open = 0
        """How often somebody came while an earlier connection of his was open."""
        self._listener = listen(line.path)

    def refuse(self, times: int) -> None:
        for _ in range(times):
            self._listener.settimeout(SOON)
            connection, _address = self._listener.accept()
            self.came.append(self._line.now)
            self.still_open += any(not is_closed(earlier) for earlier in self._kept)
            self._kept.append(connection)
            connection.shutdown(socket.SHUT_WR)

    @property
    def pauses(self) -> list[float]:
        return [round(after - before, 3) for before, after in pairwise(self.came)]

    def close(self) -> None:
        self._listener.close()
        for connection in self._kept:
            connection.close()


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


@pytest.fixture
def line(daemon: InsideDaemon) -> Iterator[Line]:
    with TemporaryDirectory(prefix="nri-") as folder:
        made = Line(daemon, Path(folder) / "nri.sock")
        yield made
        made.stop()


def test_an_absent_socket_is_tried_twenty_times_a_second_however_long_it_takes(line: Line) -> None:
    line.run_until(waits=1000)
    assert set(line.waits) == {0.05}
    assert line.runner.last_error.endswith("nri.sock: No such file or directory")


def _directory(path: Path) -> None:
    path.mkdir()


def _file(path: Path) -> None:
    path.write_text("")


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def _dead_socket(path: Path) -> None:
    listen(path).close()


@pytest.mark.parametrize("make", [_directory, _file, _dangling_link, _dead_socket])
def test_a_path_that_nobody_serves_is_absent_and_told_once(
    line: Line, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    make(line.path)
    with caplog.at_level(logging.WARNING):
        line.run_until(waits=50)
    assert set(line.waits) == {0.05}
    (told,) = map(vars, caplog.records)
    assert told["message"] == "runtime not reachable, trying again"
    assert told["error"].startswith(f"{line.path}: ")


def test_an_error_has_its_time_and_ends_when_the_runtime_has_told_its_pods(line: Line) -> None:
    before = time.time()
    line.run_until(waits=3)
    first = line.runner.last_error_at
    assert before <= first <= time.time()
    line.runner.synchronized()
    assert (line.runner.last_error, line.runner.last_error_at) == ("", 0.0)


def test_a_runtime_that_hangs_up_is_an_error_that_is_told_each_time_it_was_there(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeRuntime(line.path) as runtime, caplog.at_level(logging.WARNING):
        line.start()
        for _time in range(2):
            runtime.accept(SOON)
            wait_until(lambda: line.runner.link is Link.SYNCHRONIZED, "the session")
            assert line.runner.last_error == ""
            runtime.disconnect()
            wait_until(lambda: line.runner.last_error == "the runtime closed the connection", "the end")
        line.stop()
    told = [vars(it) for it in caplog.records if it.message == "the runtime closed the connection"]
    assert (len(told), [it["error"] for it in told if "error" in it]) == (2, [])


def test_an_orderly_stop_is_no_warning(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    with FakeRuntime(line.path) as runtime, caplog.at_level(logging.WARNING):
        line.start()
        runtime.accept(SOON)
        wait_until(lambda: line.runner.link is Link.SYNCHRONIZED, "the session")
        line.stop()
    assert (caplog.records, line.runner.last_error) == ([], "")


def test_a_session_that_breaks_while_it_is_stopped_is_no_warning(
    line: Line, daemon: InsideDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    with listen(line.path) as listener, caplog.at_level(logging.WARNING):

        def hang_up(_pid: int) -> Plugin:
            listener.accept()[0].close()
            runner.stop()
            return Plugin(daemon.engine, daemon.spans, lambda _facts: None)

        runner = Runner(str(line.path), hang_up, name="nri-rdma", index="90")
        runner.run()
    assert (caplog.records, runner.last_error) == ([], "")


def test_a_path_that_is_too_long_says_so(daemon: InsideDaemon) -> None:
    line = Line(daemon, Path("/tmp") / ("x" * 200))
    line.run_until(waits=2)
    assert "too long" in line.runner.last_error


def test_a_runtime_that_refuses_the_registration_says_why(line: Line) -> None:
    with listen(line.path) as listener:
        line.start()
        listener.settimeout(SOON)
        connection, _address = listener.accept()
        with connection:
            trunk, server = MuxDecoder(), ServerConnection()
            call = None
            while call is None:
                for _conn, piece in trunk.receive_data(connection.recv(65536)):
                    server.receive_data(piece)
                call = server.next_event()
            assert isinstance(call, Request)
            refusal = server.fail(call.stream_id, Code.ALREADY_EXISTS, "there is a plugin of this name")
            connection.sendall(encode_message(RUNTIME_SERVICE_CONN, refusal))
            wait_until(lambda: line.runner.last_error == "there is a plugin of this name", "the error")


def test_a_runtime_that_refuses_us_is_asked_less_and_less(line: Line) -> None:
    refuser = Refuser(line)
    line.start()
    refuser.refuse(10)
    line.runner.stop()
    assert refuser.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert refuser.still_open == 0
    refuser.close()


def test_another_socket_is_another_runtime_and_tried_at_once(line: Line) -> None:
    """containerd, restarted often before it had told its pods: half a minute without us would be our doing."""
    first = Refuser(line)
    aside = line.path.with_name("new.sock")
    replaced_at: list[float] = []
    with FakeRuntime(aside) as other:

        def replace() -> None:
            if len(first.came) == 7 and not replaced_at and line.now > first.came[-1] + 10:
                aside.rename(line.path)
                replaced_at.append(line.now)

        line.at_wait = replace
        line.start()
        first.refuse(7)
        other.accept(SOON)
        assert line.now == replaced_at[0]
    first.close()


def test_after_a_good_session_it_is_back_in_a_twentieth_of_a_second(line: Line) -> None:
    with FakeRuntime(line.path) as runtime:
        line.start()
        for _ in range(4):
            connection, _address = runtime._listener.accept()
            connection.close()
        runtime.accept(SOON)
        wait_until(lambda: line.runner.link is Link.SYNCHRONIZED, "the link to be up")
        line.now += 6
        line.now += 60
        time.sleep(0.05)
        assert line.runner.link is Link.SYNCHRONIZED
        ended_at = line.now
        runtime.disconnect()
        runtime.accept(SOON)
        assert round(line.now - ended_at, 3) == 0.05


def test_a_synchronized_session_that_ends_early_costs_little_at_first(line: Line) -> None:
    with FakeRuntime(line.path) as runtime:
        line.start()
        came = []
        for _ in range(4):
            runtime.accept(SOON)
            wait_until(lambda: line.runner.link is Link.SYNCHRONIZED, "the link to be up")
            came.append(line.now)
            runtime.disconnect()
        assert [round(after - before, 3) for before, after in pairwise(came)] == [0.05, 0.1, 0.2]


def test_a_socket_that_is_replaced_while_the_old_runtime_lives_ends_the_old_session(line: Line) -> None:
    with FakeRuntime(line.path) as old:
        line.start()
        old.accept(SOON)
        wait_until(lambda: line.runner.link is Link.SYNCHRONIZED, "the link to be up")
        aside = line.path.with_name("new.sock")
        with FakeRuntime(aside) as new:
            aside.rename(line.path)
            old.wait_closed(SOON)
            new.accept(SOON)
            wait_until(lambda: line.runner.link is Link.SYNCHRONIZED, "the link to be up")


def test_a_socket_that_is_replaced_while_it_connects_is_left_for_the_new_one(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which of both the connection leads to."""
    looks, look, aside = [0], module._socket_id, line.path.with_name("new.sock")

    def look_late(path: str) -> module.SocketId | None:
        looks[0] += 1
        if looks[0] == 2:  # between the connection and the look that follows it
            aside.rename(line.path)
        return look(path)

    monkeypatch.setattr(module, "_socket_id", look_late)
    with listen(line.path) as old, FakeRuntime(aside) as new:
        line.start()
        left, _address = old.accept()
        with left:
            left.settimeout(SOON)
            assert left.recv(64) == b""
        new.accept(SOON)
        wait_until(lambda: line.runner.link is Link.SYNCHRONIZED, "the link to be up")


def test_a_socket_that_is_removed_under_a_living_session_leaves_it_alone(line: Line) -> None:
    with FakeRuntime(line.path) as runtime:
        line.start()
        runtime.accept(SOON)
        line.path.unlink()
        line.path.write_text("")
        line.path.unlink()
        with pytest.raises(TimeoutError):
            runtime.wait_closed(0.2)


def test_a_mode_that_is_changed_makes_no_other_socket_of_it(line: Line) -> None:
    with FakeRuntime(line.path) as runtime:
        line.start()
        runtime.accept(SOON)
        line.path.chmod(0o660)
        with pytest.raises(TimeoutError):
            runtime.wait_closed(0.2)


def test_a_runtime_that_accepts_and_does_nothing_is_given_up_after_a_minute(line: Line) -> None:
    with listen(line.path) as listener:
        line.start()
        listener.settimeout(SOON)
        half_open, _address = listener.accept()
        line.now += 59
        time.sleep(0.05)  # it looks after its session every hundredth of a second
        assert not is_closed(half_open)
        line.now += 1
        second, _address = listener.accept()
        assert is_closed(half_open)
        assert line.runner.last_error == "the runtime took no notice of us for 60 s"
        half_open.close()
        second.close()


def test_a_runtime_that_accepts_more_gets_no_second_session(line: Line) -> None:
    with FakeRuntime(line.path) as runtime:
        line.start()
        runtime.accept(SOON)
        runtime._listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            runtime._listener.accept()
        again = socket.socket(fileno=os.dup(runtime._listener.fileno()))
        again.settimeout(0.2)
        with again, pytest.raises(TimeoutError):
            again.accept()

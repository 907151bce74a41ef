"""Hooks ask on a socket: the daemon says at once that it has heard, and later what came of it."""

from __future__ import annotations

import array
import json
import os
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.doors.oci import hook_server
from nri_rdma.doors.oci.hook_server import HookServer
from nri_rdma.doors.oci.questions import LONGEST, Given, HookQuestion, Prepared
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.observe.durations import Durations
from nri_rdma.tasks.listeners import Listeners
from tests.rig.deadline import wait_until

SOON = 20.0
RETURN = {"version": 1, "ask": "return", "id": "box"}
ATTACH = {"version": 1, "ask": "attach", "id": "box", "pid": 1, "devices": [{"device": "mlx5_0"}]}


class Asked:
    """What stands for the containers: it notes what is asked, and what the descriptors lead to."""

    def __init__(self) -> None:
        self.attached: list[tuple[HookQuestion, str]] = []
        self.returned: list[HookQuestion] = []
        self.error: Exception | None = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def prepare(self, question: HookQuestion, namespace: int | None) -> Prepared:
        if self.error is not None:
            raise self.error
        if namespace is None:
            return Prepared(env=(("FOR", question.container_id),))
        return Prepared(env=(("IN", str(Path(f"/proc/self/fd/{namespace}").readlink())),))

    def attach(self, question: HookQuestion, namespace: int) -> Given:
        self.may_go_on.wait(SOON)
        if self.error is not None:
            raise self.error
        self.attached.append((question, str(Path(f"/proc/self/fd/{namespace}").readlink())))
        return Given(memlock=5, must=True)

    def give_back(self, question: HookQuestion) -> Given:
        self.returned.append(question)
        return Given()


class Place:
    """A server with its socket."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "oci.sock"
        self.asked = Asked()
        self._listeners = Listeners()
        self.calls = Durations()
        self.server = HookServer(self.asked, self._listeners, self.calls)
        self.server.serve(self.path)

    def counts(self) -> dict[tuple[str, ...], int]:
        return {labels: it.count for labels, it in self.calls.histograms().items()}

    def close(self) -> None:
        self.server.close(SOON)
        self._listeners.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


@contextmanager
def connected(place: Place) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(SOON)
        connection.connect(str(place.path))
        yield connection


def send(connection: socket.socket, data: bytes, fds: tuple[int, ...] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([data], rights)


def answers(connection: socket.socket) -> list[Any]:
    """All packets until the daemon hangs up."""
    found = []
    while data := connection.recv(1 << 17):
        found.append(json.loads(data))
    return found


def ask(place: Place, question: object, fds: tuple[int, ...] = ()) -> list[Any]:
    data = question if isinstance(question, bytes) else json.dumps(question).encode()
    with connected(place) as connection:
        send(connection, data, fds)
        return answers(connection)


def open_files() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was the one by which we look
            found.add(str(link.readlink()))
    return found


def test_a_question_comes_with_the_descriptor_that_was_handed_over(place: Place, tmp_path: Path) -> None:
    handed = tmp_path / "namespace"
    handed.touch()
    with handed.open() as file:
        heard, answer = ask(place, ATTACH, (file.fileno(),))
    assert heard == {"version": 1, "heard": True}
    assert answer == {"version": 1, "memlock": 5, "must": True}
    ((question, led_to),) = place.asked.attached
    assert (question.container_id, question.wishes[0].device, led_to) == ("box", "mlx5_0", str(handed))
    wait_until(lambda: str(handed) not in open_files(), "the descriptor to be closed", SOON)


def test_the_end_of_a_container_needs_no_descriptor(place: Place) -> None:
    assert ask(place, RETURN)[-1] == {"version": 1, "memlock": None, "must": False}
    assert [question.container_id for question in place.asked.returned] == ["box"]


def test_questions_are_counted_by_the_hooks_that_ask_them(place: Place) -> None:
    with Path("/dev/null").open() as file:
        ask(place, ATTACH, (file.fileno(),))
    ask(place, RETURN)
    assert place.counts() == {("createRuntime", "done"): 1, ("poststop", "done"): 1}


def test_a_hook_is_told_at_once_that_somebody_is_there(place: Place) -> None:
    with connected(place) as connection:
        assert json.loads(connection.recv(4096)) == {"version": 1, "heard": True}


@pytest.mark.parametrize("number", [0, 2])
def test_an_attach_needs_one_descriptor(place: Place, number: int) -> None:
    with Path("/dev/null").open() as file:
        answer = ask(place, ATTACH, (file.fileno(),) * number)[-1]
    assert answer["refusal"].startswith("nri-rdma: OCI-STATE: a hook sent ")
    assert place.asked.attached == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PlacementError(ErrorCode.DEVICE_IN_USE, "it is taken", where="here", hint="wait"), "DEVICE-IN-USE"),
        (ZeroDivisionError("a bug"), "INTERNAL"),
    ],
    ids=["refused", "bug"],
)
def test_whatever_goes_wrong_the_hook_is_told_not_to_start(place: Place, error: Exception, code: str) -> None:
    place.asked.error = error
    with Path("/dev/null").open() as file:
        answer = ask(place, ATTACH, (file.fileno(),))[-1]
    assert answer["refusal"].startswith(f"nri-rdma: {code}: ")
    assert place.counts() == {("createRuntime", "failed" if code == "INTERNAL" else "refused"): 1}


@pytest.mark.parametrize("data", [b"{}", b"nonsense", json.dumps({**ATTACH, "version": 9}).encode()])
def test_what_is_no_question_is_refused(place: Place, data: bytes) -> None:
    assert ask(place, data)[-1]["refusal"].startswith("nri-rdma: OCI-STATE: ")


def test_a_packet_that_is_too_large_is_not_answered_and_its_descriptor_closed(place: Place, tmp_path: Path) -> None:
    handed = tmp_path / "namespace"
    handed.touch()
    with handed.open() as file, connected(place) as connection:
        send(connection, b"x" * (LONGEST + 1), (file.fileno(),))
        assert answers(connection) == [{"version": 1, "heard": True}]
    wait_until(lambda: str(handed) not in open_files(), "the descriptor to be closed", SOON)


def test_one_container_that_waits_keeps_no_other_waiting(place: Place) -> None:
    place.asked.may_go_on.clear()
    with Path("/dev/null").open() as file, connected(place) as waiting:
        send(waiting, json.dumps(ATTACH).encode(), (file.fileno(),))
        assert ask(place, {**RETURN, "id": "other"})[-1]["memlock"] is None
        place.asked.may_go_on.set()
        assert answers(waiting)[-1]["memlock"] == 5


def test_who_says_nothing_is_hung_up_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_server, "PATIENCE_S", 0.05)
    with connected(place) as connection:
        before = time.monotonic()
        assert answers(connection) == [{"version": 1, "heard": True}]
        assert time.monotonic() - before < SOON


def test_a_hook_that_goes_away_harms_nobody(place: Place) -> None:
    for _ in range(3):
        with connected(place):
            pass
    assert ask(place, RETURN)[-1]["memlock"] is None


def test_the_socket_is_roots_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert stat.S_IMODE(place.path.stat().st_mode) == 0o600
    place.close()
    place.close()
    assert not place.path.exists()


def test_a_socket_that_a_killed_daemon_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(tmp_path / "oci.sock"))
    place = Place(tmp_path)
    assert ask(place, RETURN)[-1]["memlock"] is None
    place.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_heard_wherever_the_socket_is() -> None:
    program = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        " s.connect(sys.argv[1]); print(s.recv(4096))"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders are closed to others
        place = Place(Path(folder))
        place.path.chmod(0o666)
        Path(folder).chmod(0o755)
        command = ["/usr/bin/python3", "-ISc", program, str(place.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        place.close()
    assert (done.stdout, done.stderr) == ("b''\n", "")


def test_what_a_container_is_to_be_made_with_is_answered(place: Place, tmp_path: Path) -> None:
    question = {"version": 1, "ask": "prepare", "id": "box", "annotations": {"rdma.noderesource.dev": "1"}}
    assert ask(place, question)[-1] == {"version": 1, "nodes": [], "env": [["FOR", "box"]]}
    with (tmp_path / "namespace").open("w") as file:
        assert ask(place, question, (file.fileno(),))[-1]["env"] == [["IN", file.name]]
    place.asked.error = PlacementError(ErrorCode.DEVICE_IN_USE, "taken")
    assert ask(place, question)[-1] == {"version": 1, "refusal": "nri-rdma: DEVICE-IN-USE: taken."}

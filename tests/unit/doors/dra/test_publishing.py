"""The slices of a node are written when something differs, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path

import pytest

from nri_rdma.decide.advertised import Advertised
from nri_rdma.doors.dra import publishing
from nri_rdma.doors.dra.publishing import Publisher
from nri_rdma.host.kubernetes.api import ApiServer
from tests.rig.api_server import SLICES, Seen, Server, begin_stream, running, send, send_piece
from tests.rig.deadline import wait_until

QUIET_S = 0.2
FIRST_PAUSE_S = 0.1


def devices(number: int, state: str = "up") -> list[Advertised]:
    return [Advertised(name=f"d{at}", attributes={"a/state": {"string": state}}, capacity={}) for at in range(number)]


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture
def now() -> list[Advertised]:
    """What the node has; a test changes it."""
    return devices(2)


@pytest.fixture
def publisher(
    server: Server, now: list[Advertised], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Publisher]:
    monkeypatch.setattr(publishing, "QUIET_S", QUIET_S)
    monkeypatch.setattr(publishing, "FIRST_PAUSE_S", FIRST_PAUSE_S)
    api = ApiServer(server.kubeconfig(tmp_path))
    made = Publisher(api, "node-a", lambda: list(now))
    yield made
    made.close()
    api.close()


def names(server: Server) -> list[str]:
    return sorted(it["name"] for told in list(server.slices.values()) for it in told["spec"]["devices"])


def generations(server: Server) -> set[int]:
    return {told["spec"]["pool"]["generation"] for told in list(server.slices.values())}


def test_devices_are_published_once_and_nothing_is_written_without_a_change(
    server: Server, publisher: Publisher
) -> None:
    began = time.time()
    assert publisher.published.slices == 0
    publisher.start()
    wait_until(lambda: names(server) == ["d0", "d1"], "the slice")
    threads = {it.name: it.daemon for it in threading.enumerate()}
    assert (threads["slices"], threads["slices-watch"]) == (True, True)  # no end of a process waits for the API server
    for _ in range(5):
        publisher.look()
        time.sleep(QUIET_S / 2)
    assert [it.method for it in server.writes] == ["POST"]
    (told,) = server.slices.values()
    assert told["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    known = publisher.published
    assert (known.devices, known.slices, known.generation, known.error) == (2, 1, 1, "")
    assert began <= known.written <= time.time()


def test_what_is_published_already_is_not_written_again(
    server: Server, publisher: Publisher, now: list[Advertised], tmp_path: Path
) -> None:
    publisher.start()
    wait_until(lambda: bool(server.slices), "the slice")
    publisher.close()
    api = ApiServer(server.kubeconfig(tmp_path / "next"))
    following = Publisher(api, "node-a", lambda: list(now))
    asked = len(server.seen)
    following.start()
    wait_until(lambda: any(it.path == SLICES and "watch" not in it.query for it in server.seen[asked:]), "a look")
    wait_until(lambda: following.published.slices == 1, "what is published")
    time.sleep(2 * QUIET_S)
    assert sum(it.path == SLICES and "watch" not in it.query for it in server.seen[asked:]) == 1
    following.close()
    api.close()
    assert len(server.writes) == 1
    known = following.published
    assert (known.devices, known.generation, known.written) == (2, 1, 0.0)


def test_a_driver_that_publishes_our_devices_is_named_once_and_its_slice_is_left_alone(
    server: Server, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    other = {"driver": "dra.net", "nodeName": "node-a", "pool": {"generation": 1}, "devices": [{"name": "d1"}]}
    server.slices["theirs"] = {"metadata": {"name": "theirs"}, "spec": other}
    publisher.start()
    wait_until(lambda: len(server.slices) == 2, "our slice")
    for _ in range(3):
        publisher.look()
        time.sleep(QUIET_S)
    told = [vars(it) for it in caplog.records if "another driver" in it.message]
    assert [(it["driver"], it["devices"]) for it in told] == [("dra.net", ["d1"])]
    assert publisher.rivals == {"dra.net": ["d1"]}
    assert server.slices["theirs"]["spec"] == other
    assert [it.method for it in server.writes] == ["POST"]


def test_a_reading_of_the_node_that_shows_the_same_devices_asks_the_api_server_nothing(
    server: Server, publisher: Publisher, now: list[Advertised]
) -> None:
    """Every pod that comes or goes has the node read, on every node of a cluster."""
    publisher.start()
    wait_until(lambda: bool(server.slices), "the slice")
    wait_until(lambda: any("watch" in it.query for it in server.seen), "the watch")
    time.sleep(6 * QUIET_S)  # our own write is news of the watch, too
    asked = len(server.seen)
    for _ in range(5):
        publisher.node_was_read()
        time.sleep(QUIET_S / 2)
    assert len(server.seen) == asked
    now[:] = devices(2, "down")
    publisher.node_was_read()
    wait_until(lambda: "down" in str(list(server.slices.values())), "the change")


def test_slices_that_somebody_deleted_are_written_again(server: Server, publisher: Publisher) -> None:
    publisher.start()
    wait_until(lambda: bool(server.slices), "the slice")
    wait_until(lambda: any("watch" in it.query for it in server.seen), "the watch")
    server.forget_slices()
    wait_until(lambda: names(server) == ["d0", "d1"], "the slice again")
    assert [it.method for it in server.writes] == ["POST", "POST"]


def test_more_devices_take_another_slice_and_fewer_give_it_back(
    server: Server, publisher: Publisher, now: list[Advertised]
) -> None:
    now[:] = devices(1)
    publisher.start()
    wait_until(lambda: len(server.slices) == 1, "the slice")
    now[:] = devices(256)
    publisher.node_was_read()
    wait_until(lambda: len(names(server)) == 256, "both slices")
    assert (len(server.slices), generations(server)) == (2, {2})
    wait_until(lambda: publisher.published.slices == 2, "what is published")
    assert (publisher.published.devices, publisher.published.generation) == (256, 2)
    now[:] = devices(3)
    publisher.node_was_read()
    wait_until(lambda: len(server.slices) == 1, "one slice")
    assert (names(server), generations(server)) == (["d0", "d1", "d2"], {3})


def test_a_link_that_flaps_costs_at_most_one_write_in_the_quiet_time(
    server: Server, publisher: Publisher, now: list[Advertised], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet_s = 2 * QUIET_S
    monkeypatch.setattr(publishing, "QUIET_S", quiet_s)
    publisher.start()
    wait_until(lambda: bool(server.slices), "the slice")
    end = time.monotonic() + 4 * quiet_s
    flaps = 0
    while time.monotonic() < end:
        flaps += 1
        now[:] = devices(2, "down" if flaps % 2 else "up")
        publisher.node_was_read()
        time.sleep(0.01)
    now[:] = devices(2, "last")
    publisher.node_was_read()
    wait_until(
        lambda: "last" in str(list(server.slices.values())), "the last state"
    )  # what came in the quiet time is not lost
    times = [it.at for it in server.writes]
    assert flaps > 5
    assert len(times) >= 3
    # Of one that came late to a server on a busy machine the next one is nearer: so all together are counted.
    assert len(times) - 2 <= (times[-1] - times[0]) / quiet_s


def test_errors_are_said_once_and_tried_again_after_growing_pauses(
    server: Server, publisher: Publisher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(handler: BaseHTTPRequestHandler, seen: Seen) -> bool:
        return "watch" not in seen.query and send(handler, 403, {"message": "may not list"})

    monkeypatch.setattr(publishing, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(publishing, "LAST_PAUSE_S", 0.4)
    began = time.time()
    server.answer = forbidden
    publisher.start()
    wait_until(lambda: len(server.seen) >= 5, "some tries")
    known = publisher.published
    assert "403" in known.error
    assert "Next: run `helm upgrade`, or without the chart apply the output of " in known.error
    assert (known.slices, began <= known.error_since <= began + 30) == (0, True)
    (told,) = (vars(it) for it in caplog.records if it.message == "the node's devices are not published")
    assert told["error"] == known.error
    times = [it.at for it in server.seen if "watch" not in it.query][:4]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses[0] >= 0.04
    assert pauses[1] >= 0.09
    assert pauses[2] >= 0.18
    tries = len(server.seen)
    wait_until(lambda: len(server.seen) > tries + 1, "another try")
    assert publisher.published.error_since == known.error_since
    server.answer = lambda _handler, _seen: False
    wait_until(lambda: names(server) == ["d0", "d1"] and not publisher.published.error, "the slice")


def brief(handler: BaseHTTPRequestHandler, seen: Seen) -> bool:
    """Answer a watch, and end it at once."""
    if "watch" not in seen.query:
        return False
    begin_stream(handler)
    handler.wfile.write(b"0\r\n\r\n")
    return True


def test_what_a_watch_has_missed_is_found_when_it_ends(server: Server, publisher: Publisher) -> None:
    server.answer = brief
    publisher.start()
    wait_until(lambda: bool(server.slices), "the slice")
    server.slices.clear()  # and nothing tells of it
    wait_until(lambda: names(server) == ["d0", "d1"], "the slice again", seconds=10)


def test_a_mark_of_a_watch_is_no_news(server: Server, publisher: Publisher) -> None:
    """Every minute or so a watch tells how far it is."""

    def mark(handler: BaseHTTPRequestHandler, seen: Seen) -> bool:
        if "watch" not in seen.query:
            return False
        begin_stream(handler)
        for _ in range(3):
            send_piece(handler, b'{"type":"BOOKMARK","object":{}}\n')
            server.is_over.wait(QUIET_S)
        return server.is_over.wait(30)

    server.answer = mark
    publisher.start()
    wait_until(lambda: bool(server.slices), "the slice")
    time.sleep(4 * QUIET_S)
    assert sum(it.path == SLICES and it.method == "GET" and "watch" not in it.query for it in server.seen) == 1


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "ends at once"])
def test_a_watch_that_does_not_last_is_not_repeated_at_once(
    server: Server, publisher: Publisher, is_refused: bool
) -> None:
    def refused(handler: BaseHTTPRequestHandler, seen: Seen) -> bool:
        return "watch" in seen.query and send(handler, 403, {"message": "may not watch"})

    before = {*threading.enumerate()}
    server.answer = refused if is_refused else brief
    publisher.start()
    wait_until(lambda: bool(server.slices), "the slice")
    (watcher,) = (it for it in {*threading.enumerate()} - before if it.name == "slices-watch")
    wait_until(lambda: sum("watch" in it.query for it in server.seen) >= 2, "another watch")
    time.sleep(1.0)
    assert sum("watch" in it.query for it in server.seen) <= 7
    publisher.close()
    watcher.join(30)
    assert not watcher.is_alive()


def test_it_ends_while_the_api_server_hangs_and_its_slices_stay(server: Server, publisher: Publisher) -> None:
    publisher.start()
    wait_until(lambda: bool(server.slices), "the slice")
    server.answer = lambda _handler, seen: "watch" not in seen.query and server.is_over.wait(30)
    publisher.look()
    asked = len(server.seen)
    wait_until(lambda: len(server.seen) > asked, "a call that hangs")
    began = time.monotonic()
    publisher.close()
    publisher.close()
    assert time.monotonic() - began < 8
    assert len(server.slices) == 1


def test_starting_again_compares_the_slices(server: Server, publisher: Publisher, now: list[Advertised]) -> None:
    publisher.start()
    wait_until(lambda: names(server) == ["d0", "d1"], "the slice")
    now[:] = devices(3)
    publisher.start()
    wait_until(lambda: names(server) == ["d0", "d1", "d2"], "the slice with the third device")


def test_what_was_never_started_can_be_closed_and_is_not_started_then(server: Server, publisher: Publisher) -> None:
    publisher.close()
    publisher.start()
    publisher.close()
    assert server.seen == []


@pytest.mark.parametrize(
    "told",
    [
        {"items": [{}]},
        {"items": [{"spec": {"driver": "rdma.noderesource.dev", "pool": {"generation": "1"}}}]},
        {"items": [{"spec": {"driver": "other", "devices": [{"name": []}]}}]},
        {"items": [{"spec": {"driver": "other", "devices": [{"name": "a", "attributes": [1]}]}}]},
    ],
)
def test_slices_of_another_form_are_an_error_of_the_api_server(
    server: Server, publisher: Publisher, told: object
) -> None:
    server.answer = lambda handler, seen: seen.path == SLICES and "watch" not in seen.query and send(handler, 200, told)
    publisher.start()
    wait_until(lambda: publisher.published.error != "", "the error")
    assert publisher.published.error.startswith(
        "nri-rdma: API-SERVER: the API server's answer is no list of ResourceSlices"
    )
    assert server.writes == []


def test_a_node_without_its_uid_is_an_error_of_the_api_server(server: Server, publisher: Publisher) -> None:
    server.answer = lambda handler, seen: seen.path == "/api/v1/nodes/node-a" and send(handler, 200, {"metadata": []})
    publisher.start()
    wait_until(lambda: publisher.published.error != "", "the error")
    assert publisher.published.error.startswith("nri-rdma: API-SERVER: the API server's answer is no Node")

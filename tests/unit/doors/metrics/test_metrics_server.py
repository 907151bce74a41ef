"""The server of pages on a real port: whatever clients do, the next one is answered, and nothing grows."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path

import pytest

from nri_rdma.doors.metrics import metrics_server
from nri_rdma.doors.metrics.http import PageAnswer, PageRequest
from nri_rdma.doors.metrics.metrics_server import MAX_CLIENTS, MetricsServer, MetricsView
from nri_rdma.model.listen_address import ListenAddress
from tests.rig.deadline import wait_until
from tests.rig.descriptors import open_descriptors
from tests.rig.scrape import Answered, ask, free_port

LARGE = b"#" * (8 << 20)
"""More than the kernel keeps for a client that does not read."""
DEAR_S = 0.005
"""What a page costs at most."""


class Served:
    """A server, and what it was asked."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.settled = threading.Event()
        self.asked: list[str] = []
        self.port = free_port()
        self.server = MetricsServer(ListenAddress(ip_address(host), self.port), self._answer, self.settled.set)

    def _answer(self, request: PageRequest) -> PageAnswer:
        self.asked.append(request.path)
        if request.path == "/bug":
            raise ZeroDivisionError
        if request.path == "/dear":
            end = time.thread_time() + DEAR_S
            while time.thread_time() < end:
                pass
        return PageAnswer(body=LARGE if request.path == "/large" else b"here\n")

    def ask(self, path: str = "/", **how: str) -> Answered:
        return ask(self.port, path, **how)  # type: ignore[arg-type]  # texts only

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture
def served() -> Iterator[Served]:
    """One that serves."""
    made = Served()
    made.server.start()
    yield made
    made.server.close()


def test_a_client_is_answered(served: Served) -> None:
    answered = served.ask()
    assert (answered.status, answered.text) == (200, "here\n")
    assert served.ask(method="HEAD").text == ""
    assert served.server.view() == MetricsView(address=f"127.0.0.1:{served.port}", error="")


def test_a_bug_in_a_page_costs_that_answer_only(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert served.ask("/bug").status == 500
    assert "ZeroDivisionError" in caplog.text
    assert served.ask().status == 200


def test_what_counts_is_called_also_while_nobody_asks(served: Served) -> None:
    served.settled.clear()
    assert served.settled.wait(10)


def test_all_addresses_are_those_of_ipv4_too() -> None:
    made = Served("::")
    made.server.start()
    try:
        assert made.ask(host="127.0.0.1").status == 200
        assert made.ask(host="::1").status == 200
    finally:
        made.server.close()


def test_clients_that_say_nothing_keep_nobody_waiting_and_are_few_at_a_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "PATIENCE_S", 60.0)
    before = open_descriptors()
    with ExitStack() as idle:
        connections = [idle.enter_context(served.connect()) for _ in range(1000)]
        assert served.ask().status == 200
        wait_until(lambda: len(open_descriptors() - before) <= len(connections) + MAX_CLIENTS, "the oldest to be ended")
        assert served.ask().status == 200
    wait_until(lambda: open_descriptors() <= before, "all of them to be ended")


def test_a_client_that_sends_byte_by_byte_is_ended_when_its_time_is_over(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "PATIENCE_S", 0.5)
    with served.connect() as slow:
        began = time.monotonic()
        slow.settimeout(0.05)
        while time.monotonic() - began < 10:
            try:
                slow.sendall(b"G")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert 0.4 < time.monotonic() - began < 5
    assert served.ask().status == 200


def test_a_client_that_does_not_read_is_ended_when_its_time_is_over(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "PATIENCE_S", 2.0)
    before = open_descriptors()
    with served.connect() as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert served.ask().status == 200
        wait_until(lambda: len(open_descriptors() - before) == 1, "the server to let it go")
        received = b""
        with pytest.raises(ConnectionResetError):
            while piece := deaf.recv(1 << 20):
                received += piece
        assert len(received) < len(LARGE)


def test_a_large_page_comes_whole_to_who_reads_slowly(served: Served) -> None:
    with served.connect() as slow:
        slow.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        received = bytearray()
        while piece := slow.recv(64 << 10):
            received += piece
            time.sleep(0.001)
    assert received.endswith(LARGE) and len(received) < len(LARGE) + 1000


def test_a_client_with_much_to_send_has_its_answer(served: Served) -> None:
    """Who closed at once would break the client off before it reads."""
    body = b"x" * (16 << 20)
    with served.connect() as talker:
        talker.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        answer = b""
        while piece := talker.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 405 ") and answer.endswith(b"only GET and HEAD are served\n")


def test_clients_that_ask_at_once_get_one_page(served: Served) -> None:
    """Else many who ask for a page at once would have the thread make it for each."""
    with ExitStack() as stack:
        many = [stack.enter_context(served.connect()) for _ in range(8)]
        served.asked.clear()
        for client in many:
            client.sendall(b"GET /dear HTTP/1.1\r\n\r\n")
        assert {client.makefile("rb").read()[-5:] for client in many} == {b"here\n"}
    assert len(served.asked) < len(many)


def test_a_client_that_closes_its_end_after_asking_has_its_answer(served: Served) -> None:
    with served.connect() as half:
        half.sendall(b"GET / HTTP/1.1\r\n\r\n")
        half.shutdown(socket.SHUT_WR)
        assert half.makefile("rb").read().endswith(b"\r\n\r\nhere\n")


def test_clients_that_break_off_leave_nothing(served: Served) -> None:
    served.ask()
    wait_until(lambda: not served.server._clients, "the last client to be gone")
    before = open_descriptors()
    for text in (b"", b"GET", b"GET / HTTP/1.1\r\n\r\n", b"GET /large HTTP/1.1\r\n\r\n"):
        for _ in range(20):
            with served.connect() as rude:
                rude.sendall(text)
                rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST instead of FIN
    assert served.ask().status == 200
    wait_until(lambda: open_descriptors() <= before, "all of them to be gone")


def test_a_flood_of_requests_takes_a_small_part_of_a_processor(served: Served) -> None:
    thread = next(it for it in threading.enumerate() if it.name == "metrics")
    until = time.monotonic() + 1.0

    def flood() -> None:
        while time.monotonic() < until:
            with suppress(ConnectionResetError), served.connect() as connection:
                connection.sendall(b"GET /dear HTTP/1.1\r\n\r\n")
                connection.recv(4096)

    clients = [threading.Thread(target=flood) for _ in range(16)]
    before = processor_seconds(thread)
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert processor_seconds(thread) - before < 0.2


def test_without_a_descriptor_left_a_client_waits_and_the_thread_rests(served: Served) -> None:
    thread = next(it for it in threading.enumerate() if it.name == "metrics")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower: list[int] = []
    with socket.socket() as client:
        client.settimeout(10)
        while (copy := os.dup(client.fileno())) < client.fileno():
            lower.append(copy)
        os.close(copy)
        before = processor_seconds(thread)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            client.connect(("127.0.0.1", served.port))
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            time.sleep(1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for each in lower:
                os.close(each)
        assert processor_seconds(thread) - before < 0.1
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def processor_seconds(thread: threading.Thread) -> float:
    """What a thread of this process has used."""
    fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_address_that_somebody_has_is_told_once_and_had_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics_server, "TRY_AGAIN_S", 0.1)
    monkeypatch.setattr(metrics_server, "SETTLE_S", 0.05)
    made = Served()
    with socket.create_server(("127.0.0.1", made.port)):
        made.server.start()
        assert made.server.view().error == f"127.0.0.1:{made.port}: Address already in use"
        assert made.settled.wait(10)
        time.sleep(0.5)
    try:
        wait_until(lambda: made.server.view().error == "", "the address to be had")
        assert made.ask().status == 200
        assert caplog.text.count("metrics are not served") == 1
    finally:
        made.server.close()


def test_an_address_that_the_host_does_not_have_is_told() -> None:
    made = Served("192.0.2.1")
    made.server.start()
    made.server.close()
    assert made.server.view().error == f"192.0.2.1:{made.port}: Cannot assign requested address"


def test_the_end_ends_everything_and_the_port_is_free_at_once() -> None:
    before = open_descriptors()
    made = Served()
    made.server.start()
    with made.connect() as client:
        made.ask()
        made.server.close()
        made.server.close()
        assert client.recv(1) == b""
    assert open_descriptors() <= before
    again = MetricsServer(ListenAddress(ip_address("127.0.0.1"), made.port), made._answer, made.settled.set)
    again.start()
    assert again.view().error == ""
    again.close()

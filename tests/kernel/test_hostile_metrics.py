"""The port of metrics of a daemon that runs: whatever strangers do there, pods start at once and nothing grows."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from random import Random

import pytest

from bench.hosts import in_namespace
from bench.processes import resident_kib
from nri_rdma.doors.metrics.metrics_server import MAX_CLIENTS
from tests.fuzz.mutate import damaged
from tests.kernel.attacked import Attacked, attacked
from tests.rig.scrape import Page, ask, scrape

pytestmark = [pytest.mark.root]
PORT = 9178
IDLE, SLOW, FLOODERS = 1000, 100, 8
SERVED_S = 5.0
"""A pod's whole way, on a busy machine."""
GROWTH_KIB = 16 << 10
GET = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


class Monitored:
    """The daemon, as clients on its host see it."""

    def __init__(self, daemon: Attacked) -> None:
        self.daemon = daemon

    def page(self) -> Page:
        found: list[Page] = []
        in_namespace(self.daemon.host.path, lambda: found.append(scrape(PORT)))
        return found[0]

    def meanwhile(self, attack: Callable[[threading.Event], None], threads: int = 1) -> None:
        """Have pods served while threads attack, which end when their event is set."""
        over, raised = threading.Event(), list[Exception]()

        def attack_from_the_host() -> None:
            try:
                in_namespace(self.daemon.host.path, lambda: attack(over))
            except Exception as error:  # noqa: BLE001 - the test's own thread raises it
                raised.append(error)

        attackers = [threading.Thread(target=attack_from_the_host) for _ in range(threads)]
        for attacker in attackers:
            attacker.start()
        try:
            session = self.daemon.session()
            for _ in range(5):
                begin = time.monotonic()
                self.daemon.serve_a_pod(session)
                assert time.monotonic() - begin < SERVED_S
            self.daemon.assert_answers()
        finally:
            over.set()
            for attacker in attackers:
                attacker.join()
        if raised:
            raise ExceptionGroup("in attacks", raised)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    """A daemon whose metrics have been read; one for all attacks of this file."""
    flags = ("--metrics-address", f"[::]:{PORT}")
    with attacked(tmp_path_factory.mktemp("metrics"), flags=flags) as running:
        made = Monitored(running)
        running.remember()
        made.page()
        yield made


@pytest.fixture
def monitored(served: Monitored) -> Iterator[Monitored]:
    """The same, which is as well after the attack as before, and has not grown."""
    served.page()
    before = resident_kib(served.daemon.pid)
    yield served
    starts = served.page().value("nri_rdma_nri_requests_total", method="RunPodSandbox", outcome="done")
    served.daemon.assert_well()
    after = served.page()
    assert after.value("nri_rdma_nri_requests_total", method="RunPodSandbox", outcome="done") == starts + 1
    assert resident_kib(served.daemon.pid) - before < GROWTH_KIB


def test_a_thousand_clients_that_say_nothing_keep_no_pod_waiting(monitored: Monitored) -> None:
    def attack(over: threading.Event) -> None:
        with ExitStack() as stack:
            for _ in range(IDLE):
                stack.enter_context(socket.create_connection(("127.0.0.1", PORT), timeout=10))
            assert scrape(PORT).value("process_open_fds") < 100 + MAX_CLIENTS
            over.wait()

    monitored.meanwhile(attack)


def test_clients_that_send_byte_by_byte_keep_no_pod_waiting(monitored: Monitored) -> None:
    def attack(over: threading.Event) -> None:
        with ExitStack() as stack:
            slow = [stack.enter_context(socket.create_connection(("127.0.0.1", PORT))) for _ in range(SLOW)]
            for byte in GET[:-2] * 100:
                for connection in slow:
                    with suppress(OSError):  # it was ended
                        connection.send(bytes([byte]))
                if over.wait(0.05):
                    return
                assert ask(PORT, "/healthz").status == 200

    monitored.meanwhile(attack)


def test_clients_that_never_read_keep_no_pod_waiting(monitored: Monitored) -> None:
    def attack(over: threading.Event) -> None:
        with ExitStack() as stack:
            while not over.wait(0.01):
                deaf = stack.enter_context(socket.create_connection(("127.0.0.1", PORT)))
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                with suppress(OSError):
                    deaf.sendall(GET)

    monitored.meanwhile(attack)


def test_a_flood_of_scrapes_keeps_no_pod_waiting(monitored: Monitored) -> None:
    scraped: list[int] = []

    def attack(over: threading.Event) -> None:
        while not over.is_set():
            with suppress(OSError):
                scraped.append(ask(PORT, "/metrics").status)

    monitored.meanwhile(attack, FLOODERS)
    assert {*scraped} == {200}


def test_heads_and_bodies_without_end_are_refused(monitored: Monitored) -> None:
    answers: list[bytes] = []

    def attack(over: threading.Event) -> None:
        for begin in (
            b"GET /",
            b"POST /metrics HTTP/1.1\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\nX: ",
            b"\x16\x03\x01\x02",
        ):
            with socket.create_connection(("127.0.0.1", PORT), timeout=10) as endless, suppress(OSError):
                endless.sendall(begin)
                for _ in range(1000):
                    endless.sendall(b"x" * 4096)
                answers.append(endless.recv(12))
        over.wait()

    monitored.meanwhile(attack)
    assert {*answers} <= {b"", b"HTTP/1.1 431", b"HTTP/1.1 405"}
    assert monitored.page().value("nri_rdma_runtime_synchronized") == 1


def test_damaged_requests_cost_the_connection_at_most(monitored: Monitored) -> None:
    seed = secrets.randbits(32)
    random, count = Random(seed), 0
    corpus = [GET, b"HEAD /healthz HTTP/1.0\r\n\r\n", b"GET /?\xff HTTP/1.1\n\nPOST", b"\r\n\r\n" * 9]

    def attack(over: threading.Event) -> None:
        nonlocal count
        while not over.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=0.05) as connection:
                connection.sendall(damaged(corpus, random))
                connection.recv(4096)
            count += 1

    monitored.meanwhile(attack)
    assert count > 10, f"seed {seed}"

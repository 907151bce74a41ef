"""An answer that comes byte by byte ends with the time limit of its call, wherever in it the bytes are."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import urllib3

from nri_rdma.host.kubernetes.timed import use_deadlines

OK = b"HTTP/1.1 200 OK\r\n"


class Dribbler:
    """A server that sends a beginning and then one piece after the other, 0.1 s apart, to who comes."""

    def __init__(self) -> None:
        self.begin, self.piece = b"", b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = "http://{}:{}/".format(*self._listening.getsockname())
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(OSError):  # the client has gone
                    connection.recv(1 << 16)
                    connection.sendall(self.begin)
                    while not self._is_over.wait(0.1):
                        connection.sendall(self.piece)


@pytest.fixture
def dribbler() -> Iterator[Dribbler]:
    made = Dribbler()
    yield made
    made.close()


@pytest.fixture
def manager() -> Iterator[urllib3.PoolManager]:
    made = urllib3.PoolManager(retries=False)
    use_deadlines(made)
    yield made
    made.clear()


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b"H"),
        (OK, b"A: b\r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (OK + b"Content-Length: 1000000\r\n\r\n", b" "),
        (OK + b"\r\n", b" "),
    ],
    ids=["status line", "headers", "length of a chunk", "chunks", "body", "body without a length"],
)
def test_a_byte_now_and_then_does_not_make_a_call_longer(
    dribbler: Dribbler, manager: urllib3.PoolManager, begin: bytes, piece: bytes
) -> None:
    dribbler.begin, dribbler.piece = begin, piece
    began = time.monotonic()
    with pytest.raises(urllib3.exceptions.HTTPError):
        manager.request("GET", dribbler.url, timeout=urllib3.Timeout(total=0.5), preload_content=False).read()
    assert 0.4 < time.monotonic() - began < 3


def test_the_next_call_of_a_connection_has_a_time_limit_of_its_own(manager: urllib3.PoolManager) -> None:
    answer = OK + b"Content-Length: 1\r\n\r\n1"
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                for _ in range(2):
                    connection.recv(1 << 16)
                    time.sleep(0.4)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = "http://{}:{}/".format(*listening.getsockname())
        for _ in range(2):
            told = manager.request("GET", url, timeout=urllib3.Timeout(total=0.7), preload_content=False)
            assert told.read() == b"1"
            told.release_conn()
        thread.join()

"""The file of a listening socket: its mode, what it replaces, and its end."""

from __future__ import annotations

import errno
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Client, Server
from tests.unit.ttrpc.echoing import Service, echo


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.gate.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


@pytest.fixture
def server(service: Service, path: Path) -> Iterator[Server]:
    with Server(service.handlers(), max_connections=4) as server:
        server.serve_unix(path)
        yield server
        service.gate.set()


@pytest.fixture
def client(server: Server, path: Path) -> Iterator[Client]:
    with Client(path) as client:
        yield client


class TestSocketFile:
    def test_mode_is_private_whatever_the_umask(self, server: Server, path: Path) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_mode_can_be_chosen(self, path: Path) -> None:
        with Server({}) as server:
            server.serve_unix(path, mode=0o660)
            assert stat.S_IMODE(path.stat().st_mode) == 0o660

    def test_a_stale_socket_is_replaced(self, path: Path, service: Service) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        with Server(service.handlers()) as server:
            server.serve_unix(path)
            with Client(path) as client:
                assert echo(client, b"x") == b"x"
        assert not path.exists()

    def test_a_living_server_is_not_replaced(self, server: Server, path: Path, client: Client) -> None:
        with Server({}) as second, pytest.raises(OSError) as caught:
            second.serve_unix(path)
        assert caught.value.errno == errno.EADDRINUSE
        assert echo(client, b"x") == b"x"

    def test_a_file_is_not_replaced(self, path: Path) -> None:
        path.write_text("precious")
        with Server({}) as server, pytest.raises(FileExistsError):
            server.serve_unix(path)
        assert path.read_text() == "precious"

    def test_closing_leaves_the_socket_of_a_successor(self, server: Server, path: Path) -> None:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
            server.close()
            assert path.exists()

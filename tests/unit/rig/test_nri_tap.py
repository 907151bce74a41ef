"""A tap changes nothing between its two sides, and keeps what passed."""

import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.rig.deadline import wait_until
from tests.rig.nri_tap import TO_PLUGIN, TO_RUNTIME, Piece, Tap, read_recording, write_recording


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="tap-") as name:
        yield Path(name)


@pytest.fixture
def runtime(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "runtime.sock"))
        listener.listen()
        listener.settimeout(5)
        yield listener


def _connect(folder: Path) -> socket.socket:
    plugin = socket.socket(socket.AF_UNIX)
    plugin.settimeout(5)
    plugin.connect(str(folder / "tap.sock"))
    return plugin


def test_both_directions_pass_and_are_kept_with_their_connection(folder: Path, runtime: socket.socket) -> None:
    with Tap(folder / "tap.sock", folder / "runtime.sock") as tap:
        for number in (1, 2):
            with _connect(folder) as plugin, runtime.accept()[0] as theirs:
                plugin.sendall(f"register {number}".encode())
                assert theirs.recv(64) == f"register {number}".encode()
                theirs.sendall(f"configure {number}".encode())
                assert plugin.recv(64) == f"configure {number}".encode()
        wait_until(lambda: len(tap.pieces) == 4, "every piece to be kept")
    assert [(it.connection, it.to, it.data) for it in tap.pieces] == [
        (1, TO_RUNTIME, b"register 1"),
        (1, TO_PLUGIN, b"configure 1"),
        (2, TO_RUNTIME, b"register 2"),
        (2, TO_PLUGIN, b"configure 2"),
    ]


@pytest.mark.parametrize("who", ["plugin", "runtime"])
def test_one_who_hangs_up_is_gone_for_the_other(folder: Path, runtime: socket.socket, who: str) -> None:
    with Tap(folder / "tap.sock", folder / "runtime.sock"), _connect(folder) as plugin:
        theirs, _ = runtime.accept()
        theirs.settimeout(5)
        leaves, stays = (plugin, theirs) if who == "plugin" else (theirs, plugin)
        leaves.close()
        assert stays.recv(1) == b""
        theirs.close()


def test_a_plugin_finds_nobody_where_there_is_no_runtime(folder: Path) -> None:
    with Tap(folder / "tap.sock", folder / "nobody.sock"), _connect(folder) as plugin:
        assert plugin.recv(1) == b""


def test_a_recording_is_read_as_it_was_written(folder: Path) -> None:
    pieces = [Piece(connection=1, seconds=0.25, to=TO_PLUGIN, data=bytes(range(256)))]
    write_recording(folder / "r.jsonl", {"runtime": "containerd 9"}, pieces)
    assert read_recording(folder / "r.jsonl") == ({"runtime": "containerd 9"}, pieces)

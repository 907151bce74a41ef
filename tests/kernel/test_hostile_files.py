"""Files that nobody ought to write, where a daemon reads: its journal, the CDI folder, its configuration."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nri_rdma.doors.control.daemon_client import ask_status
from tests.kernel.attacked import NAME, attacked
from tests.rig.daemon import EXCLUSIVE_FIRST
from tests.rig.deadline import wait_until

pytestmark = [pytest.mark.root]
STARTS_S = 10.0
STORM_S = 3.0
GOOD = Path(EXCLUSIVE_FIRST[1]).read_text()
CDI = json.dumps(
    {
        "cdiVersion": "0.6.0",
        "kind": "vendor.example.com/nic",
        "devices": [{"name": "a", "containerEdits": {"env": ["A=b"]}}],
    }
)


def _spoil(folder: Path, name: str) -> None:
    """Fill a folder with files of that ending that are no such files."""
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / f"a-fifo{name}")
    (folder / f"b-shadow{name}").symlink_to("/etc/shadow")
    (folder / f"c-endless{name}").symlink_to("/dev/zero")
    (folder / f"d-loop{name}").symlink_to(folder / f"d-loop{name}")
    (folder / f"e-nothing{name}").symlink_to("/nowhere")
    (folder / f"f-folder{name}").mkdir()
    (folder / f"g-empty{name}").touch()
    (folder / f"h-deep{name}").write_text("[" * 100_000)
    (folder / f"i-bytes{name}").write_bytes(bytes(range(256)))
    (folder / f"j-half{name}").write_text('{"version": 1, "checksum": "00", "rec')
    (folder / f"k-other{name}").write_text('{"version": 1, "checksum": "00", "record": {}}')
    (folder / f"l-\x1b[31mred{name}").write_text("{}")
    (folder / f"m-{'long' * 50}{name}").write_text("null")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / f"n{name}"))
    with (folder / f"o-huge{name}").open("wb") as file:
        file.truncate(80 << 20)
    for number in range(300):
        (folder / f"p{number}{name}").write_text("{")


def test_a_spoilt_journal_is_set_aside_and_the_next_pod_is_served(tmp_path: Path) -> None:
    with attacked(tmp_path, prepare=lambda place: _spoil(place.state(NAME) / "journal", ".json")) as daemon:
        begin = time.monotonic()
        daemon.remember()
        assert time.monotonic() - begin < STARTS_S + 5
        daemon.assert_well()
        journal = daemon.state / "journal"
        assert list(journal.glob("*.json")) == []
        assert len(list(journal.glob("*.unreadable"))) == 315
        assert daemon.log.read_text().count("STATE-UNREADABLE") == 315


def test_a_spoilt_folder_of_cdi_specs_keeps_no_pod_waiting(tmp_path: Path) -> None:
    with attacked(tmp_path, prepare=lambda place: _spoil(place.folder / "cdi", ".json")) as daemon:
        daemon.remember()
        wait_until(lambda: ask_status(daemon.control)["cdi_specs_read"], "the specs to be read")
        folder = daemon.place.folder / "cdi"

        def rename(number: int) -> None:
            beside = folder / f"new{number}"
            beside.write_text(CDI if number % 2 else "{")
            beside.rename(folder / f"q{number % 50}.json")

        with _storm(rename) as count:
            daemon.serve_a_pod(daemon.session())
            time.sleep(STORM_S)
        assert count[0] > 10
        daemon.assert_well()


BAD = {
    "no TOML": "[pools",
    "no text": b"\xff\x00",
    "an unknown key": "nosuch = 1\n",
    "too many unknown keys": "".join(f"key{number} = 1\n" for number in range(50_000)),
    "contested pools": '[pools.a]\nmodes = ["shared"]\n[pools.b]\nmodes = ["shared"]\n',
    "what needs a start": 'plugin_name = "other"\n',
    "a large file": "#" * (2 << 20),
    "a folder": None,
    "a FIFO": None,
    "nothing": None,
}


def test_no_configuration_and_no_storm_of_signals_changes_what_pods_get(tmp_path: Path) -> None:
    with attacked(tmp_path) as daemon:
        daemon.remember()
        config = tmp_path / "config.toml"
        for what, content in BAD.items():
            _replace(config, what, content)
            os.kill(daemon.pid, signal.SIGHUP)
            wait_until(lambda: bool(ask_status(daemon.control)["reload_error"]), f"the refusal of {what}")
            daemon.serve_a_pod(daemon.session())
            _replace(config, "good", GOOD)
            os.kill(daemon.pid, signal.SIGHUP)
            wait_until(lambda: not ask_status(daemon.control)["reload_error"], f"the good one after {what}")
        with _storm(lambda _number: os.kill(daemon.pid, signal.SIGHUP)) as count:
            daemon.serve_a_pod(daemon.session())
            time.sleep(1)
        assert count[0] > 10
        daemon.assert_well()
        assert ask_status(daemon.control)["reload_error"] == ""


def _replace(config: Path, what: str, content: str | bytes | None) -> None:
    if config.is_dir():
        config.rmdir()
    else:
        config.unlink(missing_ok=True)
    if what == "a folder":
        config.mkdir()
    elif what == "a FIFO":
        os.mkfifo(config)
    elif isinstance(content, bytes):
        config.write_bytes(content)
    elif content is not None:
        config.write_text(content)


@contextmanager
def _storm(act: Callable[[int], None]) -> Iterator[list[int]]:
    """Do it two hundred times a second meanwhile; the list has the number of times."""
    count, over = [0], threading.Event()

    def blow() -> None:
        while not over.wait(0.005):
            act(count[0])
            count[0] += 1

    thread = threading.Thread(target=blow)
    thread.start()
    try:
        yield count
    finally:
        over.set()
        thread.join()

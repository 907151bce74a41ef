"""Who asks a daemon that is absent or of another version gets an error."""

import socket
from pathlib import Path

import pytest

from nri_rdma.doors.control import daemon_client
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.errors import ErrorCode, NotReadyError


def test_nobody_there_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError) as caught:
        ask_status(tmp_path / "control.sock")
    assert caught.value.code is ErrorCode.DAEMON_ABSENT
    assert "nri-rdma run" in caught.value.hint


def test_a_daemon_that_hangs_is_told_from_one_that_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that somebody listens on and nobody serves: what a stopped process looks like."""
    monkeypatch.setattr(daemon_client, "_ANSWER_TIMEOUT_S", 0.3)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()
        with pytest.raises(NotReadyError, match=r"does not answer within 0\.3 s") as caught:
            ask_status(tmp_path / "control.sock")
    assert caught.value.code is ErrorCode.DAEMON_LATE
    assert "nri-rdma run" not in caught.value.hint


def test_a_daemon_that_accepts_nobody_any_more_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_client, "_ANSWER_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen(1)
        for _caller in range(4):  # the queue holds two
            with pytest.raises(NotReadyError) as caught:
                ask_status(tmp_path / "control.sock")
            assert caught.value.code is ErrorCode.DAEMON_LATE

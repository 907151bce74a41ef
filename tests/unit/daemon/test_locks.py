"""One daemon of a state directory, one of a runtime."""

import logging
import os
import threading
import time
from pathlib import Path

import pytest

from nri_rdma.daemon.locks import Sole
from nri_rdma.errors import ErrorCode, RuntimeAnsweredError, StateError


def _refused(state_dir: Path, nri_socket: Path, by: float = 0.0) -> str:
    with pytest.raises(StateError) as refused:
        Sole(state_dir, nri_socket, by)
    assert refused.value.code == ErrorCode.STATE_LOCKED
    return str(refused.value)


def test_a_second_daemon_of_a_state_directory_is_told_who_has_it(tmp_path: Path) -> None:
    first = Sole(tmp_path / "state", tmp_path / "nri.sock")
    told = _refused(tmp_path / "state", tmp_path / "other.sock")
    assert f"another daemon (pid {os.getpid()}) uses this state directory, {tmp_path}/state." in told
    first.release()
    Sole(tmp_path / "state", tmp_path / "other.sock").release()


def test_the_number_of_an_earlier_daemon_does_not_stay_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state/lock").write_text("4194303999\n")
    first = Sole(tmp_path / "state", tmp_path / "nri.sock")
    assert (tmp_path / "state/lock").read_text() == f"{os.getpid()}\n"
    first.release()


def test_folders_that_are_not_there_yet_are_made_for_root_only(tmp_path: Path) -> None:
    Sole(tmp_path / "var/lib/state", tmp_path / "run/x/nri.sock").release()
    assert [(tmp_path / it).stat().st_mode & 0o777 for it in ("var/lib/state", "run/x")] == [0o700, 0o700]


def test_a_second_daemon_of_a_runtime_is_refused_and_keeps_no_state_directory(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    first = Sole(tmp_path / "a", tmp_path / "run/nri.sock")
    assert f"(pid {os.getpid()}) answers this runtime" in _refused(tmp_path / "b", tmp_path / "alias/nri.sock")
    Sole(tmp_path / "b", tmp_path / "run/another.sock").release()
    first.release()
    first.release()
    Sole(tmp_path / "b", tmp_path / "run/nri.sock").release()


def test_a_second_daemon_that_is_told_of_the_socket_by_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/nri.sock").touch()
    (tmp_path / "link.sock").symlink_to("run/nri.sock")
    first = Sole(tmp_path / "a", tmp_path / "run/nri.sock")
    assert f"(pid {os.getpid()}) answers this runtime" in _refused(tmp_path / "b", tmp_path / "link.sock")
    first.release()


def test_a_socket_below_a_loop_of_links_is_warned_of_and_ends_no_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").symlink_to("again")
    (tmp_path / "again").symlink_to("run")
    Sole(tmp_path / "state", tmp_path / "run/nri.sock").release()
    assert [record.message for record in caplog.records] == ["cannot tell whether another daemon serves this runtime"]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_state_directory_that_others_may_write_is_refused_and_left_as_it_is(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(StateError, match=f"others than root may write here .*mode {mode:04o}.*chmod 0700") as refused:
        Sole(state, tmp_path / "nri.sock")
    assert refused.value.code is ErrorCode.STATE_FOREIGN
    assert list(state.iterdir()) == []
    state.chmod(0o755)
    Sole(state, tmp_path / "nri.sock").release()


@pytest.mark.root
def test_a_state_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, 65534, 65534)
    with pytest.raises(StateError, match="owner 65534"):
        Sole(state, tmp_path / "nri.sock")


def test_a_daemon_waits_for_one_that_is_about_to_end(tmp_path: Path) -> None:
    first = Sole(tmp_path / "state", tmp_path / "nri.sock")
    ending = threading.Timer(0.2, first.release)
    begun = time.thread_time()
    ending.start()
    Sole(tmp_path / "state", tmp_path / "nri.sock", time.monotonic() + 10).release()
    ending.join()
    assert time.thread_time() - begun < 0.05, "seconds of a processor: it looks now and then"


def test_a_folder_of_the_runtime_that_cannot_be_written_keeps_nobody_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Sole(tmp_path / "state", Path("/proc/version/nri.sock")).release()
    assert [record.message for record in caplog.records] == ["cannot tell whether another daemon serves this runtime"]


def test_a_daemon_that_has_both_is_told_as_the_one_that_answers_the_runtime(tmp_path: Path) -> None:
    """Who may not tell the runtime leaves its pods to that one then."""
    first = Sole(tmp_path / "state", tmp_path / "nri.sock")
    with pytest.raises(RuntimeAnsweredError):
        Sole(tmp_path / "state", tmp_path / "nri.sock")
    first.release()


def test_a_state_directory_that_cannot_be_used_leaves_the_runtimes_folder_alone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="version"):
        Sole(Path("/proc/version/state"), tmp_path / "nri/nri.sock")
    assert list(tmp_path.iterdir()) == []

"""The process that makes proofs: its start, its end, and what is told of a Python that cannot be it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.host.warm_process import WarmProcess
from tests.rig.deadline import wait_until
from tests.rig.descriptors import open_descriptors
from tests.unit.host.pyverbs import python_with


def test_it_runs_until_it_is_ended(tmp_path: Path) -> None:
    warm = WarmProcess(python_with(tmp_path, {}))
    assert not warm.has_ended()
    warm.end()
    assert (warm.has_ended(), warm.has_failed()) == (True, False)
    assert warm.last_words() == f"{tmp_path}/python3 ended with -9"


def test_it_ends_when_nobody_has_its_socket_any_more(tmp_path: Path) -> None:
    warm = WarmProcess(python_with(tmp_path, {}))
    warm._jobs.close()
    wait_until(warm.has_ended, "its end", 20)
    warm.end()


def test_a_job_for_a_process_that_has_ended_is_an_error(tmp_path: Path) -> None:
    warm = WarmProcess(python_with(tmp_path, {}))
    warm.end()
    with pytest.raises(ConnectionError):
        warm.send(b"{}", 1)


def test_a_python_that_ends_by_itself_is_told_with_its_last_line(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    python.chmod(0o755)
    warm = WarmProcess(python)
    wait_until(warm.has_ended, "its end", 20)
    warm.end()
    assert warm.has_failed()
    assert warm.last_words() == f"{python} ended with 3: no such module"


def test_a_python_that_cannot_be_started_leaves_no_descriptor(tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(FileNotFoundError):
        WarmProcess(tmp_path / "python3")
    assert open_descriptors() <= before

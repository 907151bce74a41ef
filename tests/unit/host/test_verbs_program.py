"""The process of a question to pyverbs: however it ends, that is an error in our words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.errors import ErrorCode, ProofError
from nri_rdma.host.verbs_program import ask
from tests.unit.host.pyverbs import CRASHES, python_with

TASK: dict[str, Any] = {"device": "rxe0", "memory_bytes": 4096, "transfer_bytes": 4096}
HANGS = "import time\ntime.sleep(600)\n"


def test_what_the_program_prints_is_yielded(tmp_path: Path) -> None:
    (told,) = ask(python_with(tmp_path, {}), "check", TASK, 20)
    assert told["problem"] == {"step": "open", "errno": None, "text": "Failed to open device rxe0. Errno: 19"}


@pytest.mark.parametrize(
    ("text", "within_s", "code", "what"),
    [
        (CRASHES, 20, ErrorCode.PROOF_ENDED, "ended with -11"),
        (HANGS, 1, ErrorCode.PROOF_LATE, "there was no answer within 1 s"),
    ],
)
def test_a_crash_and_a_driver_that_hangs_are_errors(
    tmp_path: Path, text: str, within_s: float, code: ErrorCode, what: str
) -> None:
    started = time.monotonic()
    with pytest.raises(ProofError, match=what) as caught:
        list(ask(python_with(tmp_path, {}, text=text), "check", TASK, within_s))
    assert caught.value.code is code
    assert time.monotonic() - started < 10


def test_a_python_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for python in (None, tmp_path / "python3"):
        with pytest.raises(ProofError) as caught:
            list(ask(python, "check", TASK, 1))
        assert caught.value.code is ErrorCode.PROOF_UNAVAILABLE


@pytest.mark.parametrize(
    ("python", "what"),
    [
        ("/bin/true", "/bin/true ended without an answer"),
        ("/bin/echo", "/bin/echo printed something that is no answer: -I "),
    ],
)
def test_a_program_that_is_no_python_is_an_error(python: str, what: str) -> None:
    for task in (TASK, TASK | {"more": "x" * 1_000_000}):  # what does not fit into a pipe is not taken
        with pytest.raises(ProofError, match=what) as caught:
            list(ask(Path(python), "check", task, 20))
        assert caught.value.code is ErrorCode.PROOF_ENDED

"""A set-up that fails says what failed and what to do next."""

import sys
from pathlib import Path

import pytest

from tests.rig import setup


@pytest.fixture(autouse=True)
def _log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "LOG", tmp_path / "setup.log")


def test_a_failed_command_is_a_sentence_with_its_error_and_the_next_step() -> None:
    program = "import sys; print('noise'); print('E: no such package', file=sys.stderr); print('more'); sys.exit(100)"
    with pytest.raises(setup.SetupError) as caught:
        setup._run([sys.executable, "-c", program], "download runc", "Check the mirror.")
    assert str(caught.value).startswith("could not download runc: E: no such package. Next: Check the mirror.")
    assert "noise" in setup.LOG.read_text()


def test_a_missing_program_is_named() -> None:
    with pytest.raises(setup.SetupError, match="no-such-program is not on this machine"):
        setup._run(["no-such-program"], "do it")


def test_the_stamps_of_a_changed_project_differ() -> None:
    assert setup._digest("a", "b") != setup._digest("ab")

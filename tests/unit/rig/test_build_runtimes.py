"""Which runtimes are built."""

import sys
from pathlib import Path

import pytest

from tests.rig.build_runtimes import SOURCES, BuildError, _run, main


def test_a_name_that_is_none_is_an_error_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["containerd-0.1"]) == 2
    told = capsys.readouterr().err
    assert told == f"runtimes: no containerd-0.1. Next: name some of {', '.join(SOURCES)}.\n"


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_a_command_that_fails_is_told_with_its_words(stream: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"failed: module lookup disabled by GOPROXY=off$"):
        _run(
            [sys.executable, "-c", f"import sys; sys.{stream}.write('module lookup disabled by GOPROXY=off'); exit(1)"],
            tmp_path,
        )

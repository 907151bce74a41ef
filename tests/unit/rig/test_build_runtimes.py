"""Which runtimes are built."""

import pytest

from tests.rig.build_runtimes import SOURCES, main


def test_a_name_that_is_none_is_an_error_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["containerd-0.1"]) == 2
    told = capsys.readouterr().err
    assert told == f"runtimes: no containerd-0.1. Next: name some of {', '.join(SOURCES)}.\n"

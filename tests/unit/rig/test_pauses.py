"""The pauses that find tests which take for done what another thread is about to do."""

import json
import sys
from types import SimpleNamespace

import pytest

from tests import pauses


def ours() -> None:
    pass


def test_functions_of_this_project_pause_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(pauses, "SHARE", 1.0)
    monkeypatch.setattr(pauses, "time", SimpleNamespace(sleep=slept.append))
    sys.setprofile(pauses.pause)
    try:
        json.loads("1")
        before = len(slept)
        ours()
    finally:
        sys.setprofile(None)
    assert (before, len(slept)) == (0, 2), "at its beginning and at its end"
    assert all(0 <= it <= pauses.LONGEST_S for it in slept)

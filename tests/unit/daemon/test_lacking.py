"""What a daemon goes without is logged once, and told until it is there."""

from __future__ import annotations

import logging

import pytest

from nri_rdma.daemon.lacking import Lacking
from nri_rdma.model.trouble import Part, Trouble

SETTING, TRACES = Trouble(part=Part.SETTINGS, why="nice = 5"), Trouble(part=Part.TRACES, why="no exporter")


def test_each_is_logged_and_told_and_settings_until_others_are_in_their_place(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        lacking = Lacking([SETTING])
        lacking.add([TRACES])
    assert [(vars(it)["part"], vars(it)["error"]) for it in caplog.records] == [
        ("settings", "nice = 5"),
        ("traces", "no exporter"),
    ]
    traces = {"part": "traces", "why": "no exporter"}
    assert lacking.told(settings_are_others=False) == ({"part": "settings", "why": "nice = 5"}, traces)
    assert lacking.told(settings_are_others=True) == (traces,)

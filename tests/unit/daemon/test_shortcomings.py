"""What a daemon goes without is logged once, and told until it is there."""

from __future__ import annotations

import logging

import pytest

from nri_rdma.daemon.shortcomings import Lacking, missing_right, warn_of_variables
from nri_rdma.decide.policy import policy_of
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode
from nri_rdma.model.trouble import Part, Trouble
from tests.fakes.kernel import FakeKernel, World

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


@pytest.mark.parametrize(("may", "parts"), [(True, []), (False, ["rights"])])
def test_a_daemon_that_may_move_nothing_is_told_where_a_pool_serves_mode_exclusive(may: bool, parts: list[str]) -> None:
    world = World()
    world.may_change_links = may
    for modes, expected in ((tuple(Mode), parts), ((Mode.SHARED,), [])):
        pools = (Pool(name="gold", modes=modes),)
        policy = policy_of(pools, (), allow_default_pool=False)
        assert [str(it.part) for it in missing_right(policy, FakeKernel(world))] == expected


def test_a_variable_with_a_typo_is_logged_with_the_one_that_was_meant(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_variables({"NRI_RDMA_LOG_FORAMT": "json", "NRI_RDMA_LOG_LEVEL": "info"})
    (record,) = caplog.records
    assert (record.levelno, vars(record)["variable"], vars(record)["meant"]) == (
        logging.WARNING,
        "NRI_RDMA_LOG_FORAMT",
        "NRI_RDMA_LOG_FORMAT",
    )

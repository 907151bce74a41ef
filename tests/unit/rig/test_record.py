"""Who may remove what a run left: of its own network, or of one that nobody needs any more."""

import os

import pytest

from tests.rig.record import NETWORK, may_sweep, own_network, process_started

LIVES = f"{os.getpid()} {process_started(os.getpid())}"
DIED = f"{os.getpid()} 0"
"""A process with the same number that started at another time."""
MACHINE = ""


@pytest.mark.parametrize(
    ("own", "of", "may"),
    [
        (MACHINE, MACHINE, True),
        (MACHINE, LIVES, False),
        (MACHINE, DIED, True),
        (LIVES, LIVES, True),
        (LIVES, DIED, True),
        (LIVES, MACHINE, False),
    ],
)
def test_what_died_in_a_network_that_still_has_its_process_is_for_that_network(
    monkeypatch: pytest.MonkeyPatch, own: str, of: str, may: bool
) -> None:
    monkeypatch.setenv(NETWORK, own)
    assert own_network() == own
    assert may_sweep(of) is may

"""Pauses between tries grow, start anew after a good session, and can be cut into pieces."""

from __future__ import annotations

import pytest

from nri_rdma.doors.nri.pauses import Pauses, pieces


def test_a_good_session_makes_the_next_failure_the_first() -> None:
    pauses = Pauses()
    for _ in range(5):
        pauses.after(synchronized=False, lasted_s=0.1)
    assert pauses.after(synchronized=True, lasted_s=5.0) == 0.05
    assert pauses.after(synchronized=False, lasted_s=0.1) == 0.5
    assert pauses.after(synchronized=True, lasted_s=4.9) == 0.1


def test_pauses_stay_at_the_longest_for_ever() -> None:
    pauses = Pauses(failures=10**9)
    assert pauses.after(synchronized=False, lasted_s=0.1) == 30.0


def test_a_pause_in_pieces_is_as_long_as_the_pause() -> None:
    assert [round(it, 3) for it in pieces(0.12)] == [0.05, 0.05, 0.02]
    assert sum(pieces(30.0)) == pytest.approx(30.0)
    assert list(pieces(0.0)) == []

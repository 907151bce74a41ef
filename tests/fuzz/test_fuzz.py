"""The fuzzer's short run, that it finds what is planted, and what it found."""

from __future__ import annotations

import logging
import secrets
from random import Random

import pytest

from tests.fuzz.mutate import cut, damaged
from tests.fuzz.run import FoundError, execute, run
from tests.fuzz.targets import TARGETS, Target

SECONDS = 10.0


def test_damaged_bytes_break_no_promise(caplog: pytest.LogCaptureFixture) -> None:
    """Another seed each time; a failure names it."""
    caplog.set_level(logging.CRITICAL, "nri_rdma")
    report = run(list(TARGETS), seed=secrets.randbits(32), seconds=SECONDS)
    assert all(report.executions.values())
    print(report)


def test_the_same_seed_damages_the_same_way() -> None:
    corpus = [b"abcdef" * 9, b"0123456789"]
    one, two = ([damaged(corpus, Random(seed)) for seed in range(50)] for _ in range(2))
    assert one == two and len(set(one)) > 40


def test_cutting_loses_nothing() -> None:
    data = bytes(range(200))
    assert all(b"".join(cut(data, Random(seed))) == data for seed in range(100))


def test_a_fault_is_found_and_can_be_run_again() -> None:
    def fragile(data: bytes, _random: Random) -> None:
        if b"\xff" in data:
            raise KeyError("planted")

    target = Target([b"harmless"], fragile)
    with pytest.raises(FoundError, match="--only planted --seed 1 --execution") as caught:
        for number in range(10_000):
            execute("planted", target, 1, number)
    again = int(str(caught.value).rpartition(" ")[2])
    with pytest.raises(FoundError, match="KeyError: 'planted'"):
        execute("planted", target, 1, again)

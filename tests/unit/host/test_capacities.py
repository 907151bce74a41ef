"""Capacities of devices, asked when devices are new and remembered."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.host.capacities import AGAIN_S, Capacities
from nri_rdma.host.verbs_process import CapacityAnswer, VerbsProcess
from nri_rdma.model.device import Node
from nri_rdma.model.pool import Pool
from nri_rdma.tasks.workers import Workers
from tests.rig.deadline import wait_until
from tests.unit.doors.deviceplugin.pools import pool
from tests.unit.host.pyverbs import python_with
from tests.unit.model.hardware import nic, node

NODE = node((nic(0), nic(1)))
FIRST, SECOND = NODE.devices


class Asked:
    """Capacities whose clock stands still, with the number of times that devices have answered."""

    def __init__(self, python: Path, *pools: Pool, folder: Path) -> None:
        self.workers = Workers(1)
        self.answers = 0
        self.now = 0.0
        self.memory = folder / "capacities.json"
        process = VerbsProcess(python)
        self.capacities = Capacities(process, pools, self.workers, self._answered, self.memory, lambda: self.now)

    def _answered(self) -> None:
        self.answers += 1

    def read(self, read: Node) -> Node:
        """Return the node as it is known once its devices have answered."""
        before = self.answers
        self.capacities.node_was_read(read)
        wait_until(lambda: self.answers > before, "the answer")
        return self.capacities.added_to(read)

    def again(self, read: Node) -> Node:
        """Return the node as it is known where no device has to be asked."""
        self.capacities.node_was_read(read)
        return self.capacities.added_to(read)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    made = Asked(python_with(tmp_path / "python", {FIRST.name: 32767}), pool(), folder=tmp_path)
    yield made
    made.workers.close(5)


def test_a_device_is_asked_once_and_a_failure_has_its_reason(asked: Asked) -> None:
    assert asked.capacities.added_to(NODE).capacities == {}
    known = asked.read(NODE)
    assert known.capacities[FIRST.id].scarcest == ("ah", 32767)
    assert known.capacity_problems == {SECOND.id: f"Failed to open device {SECOND.name}. Errno: 19"}
    assert not asked.capacities.settled.done()
    assert asked.again(NODE) == known
    assert asked.capacities.settled.done()
    assert asked.answers == 1


def test_a_query_that_could_not_be_made_is_made_after_the_next_scan(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, ask = iter([True]), VerbsProcess.ask

    def limited(process: VerbsProcess, names: Sequence[str]) -> Mapping[str, CapacityAnswer]:
        if next(left, False):
            raise OSError(errno.EMFILE, "Too many open files")
        return ask(process, names)

    monkeypatch.setattr(VerbsProcess, "ask", limited)
    asked.capacities.node_was_read(NODE)
    asked.workers.submit("capacities", lambda: None).result(30)
    assert asked.read(NODE).capacities[FIRST.id].scarcest == ("ah", 32767)


def test_a_device_that_is_removed_and_made_again_is_asked_again(asked: Asked) -> None:
    asked.read(node((FIRST,)))
    again = node((replace(FIRST, kernel_index=9),))
    assert asked.capacities.added_to(again).capacities == {}
    assert FIRST.id in asked.read(again).capacities
    assert asked.answers == 2


def test_a_failure_is_forgotten_after_a_while(asked: Asked) -> None:
    asked.read(node((SECOND,)))
    asked.now = AGAIN_S - 1
    asked.again(node((SECOND,)))
    assert asked.answers == 1
    asked.now = AGAIN_S
    asked.capacities.node_was_read(node((SECOND,)))
    wait_until(lambda: asked.answers == 2, "another answer")


def test_without_shares_no_device_is_asked(tmp_path: Path) -> None:
    asked = Asked(tmp_path / "no-python", replace(pool(), shares=0), folder=tmp_path)
    assert asked.again(NODE) is NODE
    assert asked.capacities.settled.done()
    assert asked.answers == 0
    asked.workers.close(5)


def test_the_next_daemon_knows_the_answers_of_the_same_devices_and_asks_for_failures_again(
    asked: Asked, tmp_path: Path
) -> None:
    known = asked.read(NODE)
    following = Asked(tmp_path / "no-python", pool(), folder=tmp_path)
    assert following.capacities.added_to(NODE).capacities == known.capacities
    assert following.capacities.added_to(node((replace(FIRST, kernel_index=9),))).capacities == {}
    assert set(following.read(NODE).capacity_problems) == {SECOND.id}
    following.workers.close(5)


@pytest.mark.parametrize("kept", [b"", b"[", b'[[["mlx5_0"], {"qp": 1}]]', b'[[["mlx5_0", "", null], {"qp": "1"}]]'])
def test_a_file_that_cannot_be_read_is_as_none(kept: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "capacities.json").write_bytes(kept)
    asked = Asked(tmp_path / "no-python", pool(), folder=tmp_path)
    assert asked.capacities.added_to(NODE).capacities == {}
    assert [it.message for it in caplog.records] == ["devices are asked again for their capacity"]
    asked.workers.close(5)

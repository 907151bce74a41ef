"""A machine's facts are read when a check first asks for them, and once for all checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.config.settings import Settings
from nri_rdma.errors import ErrorCode, InventoryError, NotReadyError
from nri_rdma.model.device import Node
from tests.unit.commands.doctor.bench import Bench
from tests.unit.model.hardware import eight as eight_nics
from tests.unit.rigs.inside_daemon import InsideDaemon


def test_the_node_is_read_once_and_not_before_somebody_asks() -> None:
    reads: list[int] = []

    def read() -> tuple[Node, tuple[str, ...]]:
        reads.append(1)
        return eight_nics(), ("a note",)

    machine = Machine(settings=Settings(), read_node=read)
    assert reads == []
    assert machine.node == machine.node == (eight_nics(), ("a note",))
    assert reads == [1]


def test_a_node_that_cannot_be_read_is_an_answer() -> None:
    error = InventoryError(ErrorCode.INVENTORY, "no sysfs")

    def refuse() -> tuple[Node, tuple[str, ...]]:
        raise error

    assert Machine(settings=Settings(), read_node=refuse).node is error


def test_the_daemons_status_is_that_of_its_socket(bench: Bench, daemon: InsideDaemon) -> None:
    machine = replace(bench.machine, settings=daemon.settings)
    assert isinstance(machine.daemon, dict)
    assert [device["name"] for device in machine.daemon["devices"]] == [f"mlx5_{number}" for number in range(8)]


def test_a_daemon_that_is_not_there_is_an_answer(bench: Bench, tmp_path: Path) -> None:
    found = replace(bench.machine, settings=replace(bench.settings, state_dir=tmp_path / "none")).daemon
    assert isinstance(found, NotReadyError)
    assert found.code is ErrorCode.DAEMON_ABSENT


def test_a_runtime_that_is_not_there_is_an_answer(bench: Bench) -> None:
    found = bench.machine.runtime
    assert (found.runtime, found.unheard) == (None, "")
    assert "No such file or directory" in found.refused


@pytest.mark.parametrize(("user", "is_root"), [(0, True), (65534, False)])
def test_root_is_the_user_with_the_number_0(bench: Bench, user: int, is_root: bool) -> None:
    bench.user = user
    assert bench.machine.is_root == is_root

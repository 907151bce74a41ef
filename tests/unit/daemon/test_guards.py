"""The page of metrics has the guard as the runtime last told it; who scrapes does not wait for that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.guards import AGAIN_S, RuntimeGuards
from nri_rdma.tasks.workers import Workers
from tests.fakes.containerd import FakeContainerd, Mode
from tests.rig.deadline import wait_until


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(1)
    yield made
    made.close()


def test_what_the_runtime_told_stays_until_it_is_old(workers: Workers, tmp_path: Path) -> None:
    now = [100.0]
    with FakeContainerd() as containerd:
        bare = {"baseRuntimeSpec": ""}
        hidden = {"baseRuntimeSpec": "/gone/base.json"}
        containerd.configuration = json.dumps({"containerd": {"runtimes": {"runc": bare, "kata": hidden}}})
        settings = Settings(containerd_socket=containerd.socket)
        guards = RuntimeGuards(settings, workers, crio_socket=tmp_path / "none", clock=lambda: now[0])
        assert guards.told() == {}, "it has not been asked yet"
        wait_until(lambda: guards.told() == {"runc": False}, "the runtime to tell")
        asked = len(containerd.calls)
        now[0] += AGAIN_S - 1
        assert (guards.told(), len(containerd.calls)) == ({"runc": False}, asked)
        containerd.mode = Mode.FAILS
        now[0] += 1
        wait_until(lambda: guards.told() == {}, "what is not known any more to be gone")

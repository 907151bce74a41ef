"""The page of metrics has the guard as the runtime last told it; who scrapes does not wait for that."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.runtime_guards import AGAIN_S, UNGUARDED_AGAIN_S, RuntimeGuards
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.pool import Asker
from nri_rdma.tasks.workers import Workers
from tests.fakes.containerd import FakeContainerd, Mode
from tests.rig.deadline import wait_until

RUNC = Asker(runtime_handler="runc")


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


def test_a_pod_waits_until_the_runtime_has_told_of_its_handler(workers: Workers, tmp_path: Path) -> None:
    now = [100.0]
    with FakeContainerd() as containerd:
        handlers = {"runc": {"baseRuntimeSpec": ""}, "kata": {"baseRuntimeSpec": "/gone/base.json"}}
        told = {"containerd": {"runtimes": handlers, "defaultRuntimeName": "runc"}}
        containerd.configuration = json.dumps(told)
        settings = Settings(containerd_socket=containerd.socket)
        guards = RuntimeGuards(settings, workers, crio_socket=tmp_path / "none", clock=lambda: now[0])
        asked = [
            guards.is_guarded(Asker(runtime_handler=handler), time.monotonic() + 5)
            for handler in ("", "runc", "kata", "other")
        ]
        assert asked == [False, False, None, None]
        containerd.configuration = json.dumps({"crio": {"HooksDir": [str(crio_hooks(tmp_path))]}})
        now[0] += UNGUARDED_AGAIN_S
        assert guards.is_guarded(Asker(), time.monotonic() + 5) is True, "it was set up since"
        containerd.mode = Mode.FAILS
        now[0] += AGAIN_S - 1
        assert guards.is_guarded(RUNC, time.monotonic() + 5) is True, "its answer is new"
        now[0] += 1
        assert guards.is_guarded(RUNC, time.monotonic() + 5) is None


def test_a_pod_that_nobody_could_tell_about_in_time_comes_again(workers: Workers, tmp_path: Path) -> None:
    held = threading.Event()

    def hold() -> None:
        held.wait()

    workers.submit("busy", hold)
    guards = RuntimeGuards(Settings(containerd_socket=None), workers, crio_socket=tmp_path / "none")
    with pytest.raises(NotReadyError, match="network is not ready: the runtime has not said yet") as refused:
        guards.is_guarded(Asker(), time.monotonic())
    held.set()
    assert refused.value.code is ErrorCode.NOT_READY
    assert guards.is_guarded(Asker(), time.monotonic() + 5) is None


def test_with_the_guard_resource_containers_bring_the_hook_unless_their_pod_goes_without(
    workers: Workers, tmp_path: Path
) -> None:
    settings = Settings(containerd_socket=None, guard_resource="rdma.noderesource.dev/guard")
    guards = RuntimeGuards(settings, workers, crio_socket=tmp_path / "none")
    assert guards.is_guarded(Asker(), time.monotonic()) is True
    left_out = Asker(labels=(("rdma.noderesource.dev/guard", "off"),))
    assert guards.is_guarded(left_out, time.monotonic() + 5) is None, "its handler counts, which nobody tells of"


def crio_hooks(folder: Path) -> Path:
    """A folder of CRI-O's with the guard's hook."""
    hooks, program = folder / "hooks", Path(__file__).resolve().parents[3] / "hooks/nri-rdma-hook"
    hooks.mkdir()
    hook = {"path": str(program), "args": ["nri-rdma-hook", "verify"]}
    document = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["createRuntime"]}
    (hooks / "nri-rdma-guard.json").write_text(json.dumps(document))
    return hooks

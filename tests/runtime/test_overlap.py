"""A slow kernel: pods with many devices start all the same, and their neighbours hardly notice."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from bench.figures import percentile
from tests.rig import hoststate
from tests.rig.cri import Cri
from tests.rig.deadline import wait_until
from tests.rig.expect import described_mac, look
from tests.rig.fabric import Fabric
from tests.rig.node import load
from tests.rig.podworker import NOT_READY, Pod, PodWorker
from tests.rig.runtime import Runtime
from tests.rig.slow_daemon import SlowDaemon

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.timeout(3000)]

POD = "rdma.noderesource.dev/pod"
SLOW_S = 0.2
START_S = 10.0
FOR_EVER_S = 3600.0
SEED = 20261122


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How often a slow pod is started, how many neighbours are, how many of them may not be delayed, and by how much:
    where a neighbour takes longer than twice that alone, by half of what it takes."""

    runs: int
    neighbours: int
    share: float
    delay_s: float


SHORT = Times(runs=1, neighbours=12, share=0.75, delay_s=1.0)
LONG = Times(runs=20, neighbours=100, share=0.99, delay_s=0.25)
"""Of few neighbours the slowest three say more about the machine than about us: who blocks delays each second one or
more, by seconds. One run says all that a run can say: each is judged by itself, and beside neighbours the same daemon
has such a pod again and again."""


@pytest.fixture
def times(pytestconfig: pytest.Config) -> Times:
    """Few for every run; with --long as many as the project promises."""
    return LONG if pytestconfig.getoption("--long") else SHORT


@pytest.fixture(scope="module")
def sixteen() -> Iterator[Fabric]:
    """The node "sixteen"."""
    with Fabric(load("sixteen")) as fabric:
        yield fabric


@pytest.fixture
def jitter() -> random.Random:
    """The kubelet's; the same in every run."""
    return random.Random(SEED)


def test_a_pod_with_sixteen_devices_on_a_slow_kernel_runs_within_ten_seconds_and_we_stay_connected(
    host_equal: None,
    runtime: Runtime,
    cri: Cri,
    sixteen: Fabric,
    times: Times,
    jitter: random.Random,
) -> None:
    before, took = hoststate.take(), []
    with SlowDaemon(runtime, sixteen, SLOW_S) as daemon:
        for run in range(times.runs):
            asking = Pod(name=f"slow-{run}", annotations={POD: "16"}, wanted=("main", "second", "third"))
            pod = PodWorker(cri, asking, jitter).start(START_S)
            assert pod.runs, [str(error) for error in pod.errors]
            assert pod.seconds <= START_S
            assert all(NOT_READY in error.text for error in pod.errors)
            took.append(pod.seconds)
            for container in pod.containers.values():
                seen = look(cri, container)
                assert sorted(seen.nodes) == sorted(["rdma_cm", *(f"uverbs{number}" for number in range(16))])
                macs = {seen.macs[f"rdma{number}"] for number in range(16)}
                assert macs == {described_mac(sixteen, f"hca{number}") for number in range(16)}
            assert pod.sandbox is not None
            cri.delete_pod(pod.sandbox)
            wait_until(lambda: daemon.status()["sandboxes"] == [], "the devices to be home", 30)
        assert daemon.log.count(" synchronized ") == 1, f"it was disconnected:\n{daemon.log}"
        assert hoststate.difference(before, hoststate.take()) == []
    print(f"{len(took)} of {times.runs} runs, {min(took):.1f} to {max(took):.1f} s")


def test_a_neighbour_of_a_slow_attach_is_hardly_delayed(
    host_equal: None, runtime: Runtime, cri: Cri, sixteen: Fabric, times: Times, jitter: random.Random
) -> None:
    with SlowDaemon(runtime, sixteen, SLOW_S) as daemon:
        alone = [_neighbour(cri, number) for number in range(times.neighbours)]
        beside: list[float] = []
        while len(beside) < times.neighbours:
            with _starting(runtime, "slow", "16", jitter) as worker:
                beside += _neighbours_while(cri, worker, times.neighbours - len(beside))
            wait_until(lambda: daemon.status()["sandboxes"] == [], "the devices to be home", 30)
        assert daemon.log.count(" synchronized ") == 1, f"it was disconnected:\n{daemon.log}"
    _assert_hardly_delayed(alone, beside, times)


def test_a_neighbour_of_an_attach_that_never_ends_is_hardly_delayed(
    host_equal: None, runtime: Runtime, cri: Cri, sixteen: Fabric, times: Times, jitter: random.Random
) -> None:
    with SlowDaemon(runtime, sixteen, FOR_EVER_S, ("before configure-netdev mlx5_3",)) as daemon:
        alone = [_neighbour(cri, number) for number in range(times.neighbours)]
        with _starting(runtime, "stuck", "16", jitter, deletes=False) as worker:
            beside = _neighbours_while(cri, worker, times.neighbours)
            assert not worker.pod.runs
        assert worker.pod.errors
        assert all("3 of 16 devices attached" in error.text for error in worker.pod.errors[1:])
        assert daemon.log.count(" synchronized ") == 1, f"it was disconnected:\n{daemon.log}"
        daemon.kill()
        daemon.delay_s = 0.0
        daemon.start()
        assert worker.pod.sandbox is not None
        cri.delete_pod(worker.pod.sandbox)
    _assert_hardly_delayed(alone, beside, times)


@contextmanager
def _starting(
    runtime: Runtime, name: str, request: str, jitter: random.Random, *, deletes: bool = True
) -> Iterator[PodWorker]:
    """A pod that starts meanwhile, as its kubelet's worker does it; at the end it is deleted, or only no longer
    started."""
    over = threading.Event()
    with Cri(runtime.cri_address, cgroup_parent=runtime.cgroup_parent, log_directory=runtime.work / "logs") as own:
        worker = PodWorker(own, Pod(name=name, annotations={POD: request}, wanted=("main",)), jitter)
        thread = threading.Thread(target=lambda: worker.start_until(over))
        thread.start()
        try:
            yield worker
        finally:
            over.set()
            thread.join()
            if deletes and worker.pod.sandbox is not None:
                own.delete_pod(worker.pod.sandbox)


def _neighbours_while(cri: Cri, worker: PodWorker, most: int) -> list[float]:
    """Neighbours one after the other, as long as that pod does not run."""
    took: list[float] = []
    while not worker.pod.runs and len(took) < most:
        took.append(_neighbour(cri, len(took)))
    return took


def _neighbour(cri: Cri, number: int) -> float:
    """A pod that asks for nothing; the seconds of its RunPodSandbox and CreateContainer."""
    begin = time.monotonic()
    pod = cri.run_pod(f"neighbour-{number}")
    cri.create_container(pod, "main")
    seconds = time.monotonic() - begin
    cri.delete_pod(pod)
    return seconds


def _assert_hardly_delayed(alone: list[float], beside: list[float], times: Times) -> None:
    before, with_us = percentile(alone, times.share), percentile(beside, times.share)
    told = (
        f"neighbours: p{times.share * 100:.0f} alone {before:.3f} s of {len(alone)},"
        f" beside the attach {with_us:.3f} s of {len(beside)};"
        f" medians {percentile(alone, 0.5):.3f} s and {percentile(beside, 0.5):.3f} s"
    )
    print(told)
    assert with_us - before <= max(times.delay_s, before / 2), told

"""Many pods, one after the other, with a real daemon, real namespaces and links, over the real protocol: nothing of
them stays in the daemon."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import linear_regression

import pytest

from bench.messages import ANNOTATION, pod
from bench.pods import Subject, request
from bench.processes import await_rest, resident_kib
from nri_rdma.doors.control.daemon_client import ask_status
from tests.rig.deadline import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(1200)]

UNTRACED = {"NRI_RDMA_TRACING": "false"}
"""Recent spans are kept up to a bound: until three hundred pods have filled it, their growth is no leak."""
SAMPLES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Pods before the first look, and after it; and by how much memory may grow with each."""

    warm_up: int
    pods: int
    most_kib_per_pod: float


SHORT = Times(warm_up=25, pods=150, most_kib_per_pod=16.0)
"""While the allocator still finds its size; what one pod is to the daemon is more than that."""
LONG = Times(warm_up=50, pods=500, most_kib_per_pod=2.0)


@pytest.fixture
def times(pytestconfig: pytest.Config) -> Times:
    """Few for every run; with --long as many as the project promises."""
    return LONG if pytestconfig.getoption("--long") else SHORT


STEADY_LOOKS, PAUSE_S = 5, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a process has open: descriptors by kind, threads, namespaces and netlink sockets."""

    descriptors: Counter[str]
    threads: int
    namespaces: int
    netlink_sockets: int


def test_pods_that_come_and_go_leave_nothing_in_the_daemon(
    tmp_path: Path, times: Times, capsys: pytest.CaptureFixture[str]
) -> None:
    with Subject.started(tmp_path, "soak", settings=UNTRACED) as subject:
        numbers = count(1)
        for _ in range(times.warm_up):
            _live(subject, next(numbers))
        before, samples = _held(subject), []
        for number in range(times.pods):
            _live(subject, next(numbers))
            if (number + 1) % max(1, times.pods // SAMPLES) == 0:
                samples.append((number + 1, resident_kib(subject.pid)))
        after = _held(subject)
        status = ask_status(subject.place.control_socket(subject.name))
    slope = linear_regression(*zip(*samples, strict=True)).slope
    told = f"{times.pods} pods: {slope:.2f} KiB per pod, {samples[0][1]} KiB to {samples[-1][1]} KiB, {after}"
    with capsys.disabled():
        print(f"\n{told}")
    assert replace(after, threads=before.threads) == before
    assert after.threads <= before.threads, told  # one that was about to end may have been counted before
    assert (status["sandboxes"], status["namespaces_held"], status["unserved"]) == ([], 0, [])
    assert slope < times.most_kib_per_pod, told


def test_no_thread_of_the_daemon_stays_in_the_namespace_of_a_pod_that_is_attached(tmp_path: Path) -> None:
    with Subject.started(tmp_path, "rests", settings=UNTRACED) as subject:
        netns = subject.host.make_pod("pod-1")
        inode = netns.stat().st_ino
        message = pod(1, {ANNOTATION: request(1)}, str(netns))
        assert subject.start(message, 0.0).devices == 1
        wait_until(lambda: not _threads_in(subject.pid, inode), "the threads to leave the namespace")
        subject.end(message)
        subject.host.remove_pod(netns)


def _threads_in(pid: int, netns: int) -> list[str]:
    """The threads of a process in the network namespace with this inode."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [it.name for it in tasks if (it / "ns/net").exists() and (it / "ns/net").stat().st_ino == netns]


def _live(subject: Subject, number: int) -> None:
    """A pod with one device alone, from its start to its end."""
    netns = subject.host.make_pod(f"pod-{number}")
    message = pod(number, {ANNOTATION: request(1)}, str(netns))
    assert subject.start(message, 0.0).devices == 1
    subject.end(message)
    subject.host.remove_pod(netns)


def _held(subject: Subject) -> Held:
    """At rest: what it has open, once that stays the same for a second."""
    await_rest(subject.pid)
    known: list[Held] = []

    def stays() -> Held | None:
        time.sleep(PAUSE_S)
        known.append(_open_now(subject))
        lately = known[-STEADY_LOOKS:]
        return lately[-1] if len(lately) == STEADY_LOOKS and lately.count(lately[0]) == STEADY_LOOKS else None

    return wait_until(stays, "the daemon to come to rest")


def _open_now(subject: Subject) -> Held:
    kinds: Counter[str] = Counter()
    inodes, namespaces = set(), 0
    of_namespaces = Path("/proc/self/ns/net").stat().st_dev
    for link in Path(f"/proc/{subject.pid}/fd").iterdir():
        namespaces += link.stat().st_dev == of_namespaces
        text = str(link.readlink())
        kinds[re.sub(r"\[\d+\]", "[]", text)] += 1
        if found := re.fullmatch(r"socket:\[(\d+)\]", text):
            inodes.add(found[1])
    table = Path(f"/proc/{subject.pid}/net/netlink").read_text().splitlines()[1:]
    return Held(
        descriptors=kinds,
        threads=len(list(Path(f"/proc/{subject.pid}/task").iterdir())),
        namespaces=namespaces,
        netlink_sockets=sum(1 for line in table if line.split()[-1] in inodes),
    )

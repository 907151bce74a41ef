"""The handlers of a connection: what pods without a request cost, when an answer is due, and what a list tells."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nri_rdma.doors.nri.plugin import answer_by, listed_container, listed_pod
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.text.manifest import PodManifest
from nri_rdma.text.share_annotations import GUARDED_PREFIX, KEY_PREFIX, share_annotation
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from nri_rdma.ttrpc.wire import Request
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.nri_calls import Handlers


def test_a_pod_that_asks_for_nothing_leaves_no_trace(tmp_path: Path, eight: Path) -> None:
    with InsideDaemon(tmp_path, eight) as inside:
        handlers = Handlers(inside)
        before = [span.name for span in inside.spans.recent()]
        handlers.stop_pod(
            handlers.run_pod(PodManifest(kind="Pod", namespace="default", name="plain", annotations={}, containers=()))
        )
        assert [span.name for span in inside.spans.recent()] == before


@pytest.mark.parametrize(
    ("timeout_ns", "budget_s", "left_s"),
    [(0, 2.0, 1.8), (int(1e9), 2.0, 0.8), (int(4e9), 2.0, 1.8)],
    ids=["the runtime's alone", "the request's is shorter", "the runtime's is shorter"],
)
def test_an_answer_is_due_before_the_shorter_of_both_timeouts(timeout_ns: int, budget_s: float, left_s: float) -> None:
    begun = time.monotonic()
    by = answer_by(Request(1, ttrpc.Request(timeout_nano=timeout_ns), 0), budget_s)
    assert begun + left_s <= by + 0.001
    assert by <= time.monotonic() + left_s + 0.001


def test_a_container_may_have_run_unless_the_runtime_says_that_it_was_only_created() -> None:
    states = (nri.CONTAINER_UNKNOWN, nri.CONTAINER_CREATED, nri.CONTAINER_PAUSED, nri.CONTAINER_RUNNING)
    told = [listed_container(nri.Container(name="main", state=it)).has_run for it in states]
    assert told == [True, False, True, True]


@pytest.mark.parametrize("prefix", [KEY_PREFIX, GUARDED_PREFIX])
def test_shares_of_a_pod_whose_author_writes_such_keys_count_for_nothing(prefix: str) -> None:
    key, text = share_annotation("rdma/hca", ["hcas-07"])
    container = listed_container(nri.Container(name="main", annotations={key: text}))
    told = []
    for written in ({}, {f"{prefix}rdma_hca": "rdma/hca=hcas-01"}):
        pod = listed_pod(nri.PodSandbox(id="s", annotations=written), (container,))
        told.append([it.shares for it in pod.containers])
    assert told == [[frozenset({("rdma/hca", "hcas-07")})], [frozenset()]]

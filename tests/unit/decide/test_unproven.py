"""Why a container without a proof is refused, in words for people."""

from __future__ import annotations

import pytest

from nri_rdma.decide.unproven import refusal_of
from nri_rdma.errors import ErrorCode
from nri_rdma.model.proof import (
    DeviceProof,
    DeviceTask,
    ProofAnswer,
    ProofEnd,
    ProofProblem,
    ProofStep,
    ProofTask,
)

PORTS = (DeviceTask(device="rxe0"), DeviceTask(device="rxe1", port=2))
TASK = ProofTask(where="ml/train, container main", pid=1, cgroups_path="/a", devices=PORTS)
WORKS = tuple(DeviceProof(device=it.device, port=it.port) for it in PORTS)


def answered(*proofs: DeviceProof) -> ProofAnswer:
    return ProofAnswer(end=ProofEnd.ANSWERED, took_ms=1.0, proofs=proofs)


def test_a_proof_of_each_port_is_no_refusal() -> None:
    assert refusal_of(TASK, answered(*WORKS), 3.0) is None


def test_a_port_of_which_nothing_was_said_is_not_proven() -> None:
    refused = refusal_of(TASK, answered(WORKS[0]), 3.0)
    assert refused is not None
    assert (refused.code, refused.where) == (ErrorCode.PROOF_ENDED, TASK.where)
    assert "nothing of rxe1, port 2" in refused.what


def test_the_first_port_that_does_not_work_is_named() -> None:
    problem = ProofProblem(step=ProofStep.GID, text="the table is empty")
    refused = refusal_of(TASK, answered(WORKS[0], DeviceProof(device="rxe1", port=2, problem=problem)), 3.0)
    assert refused is not None
    assert refused.code is ErrorCode.PROOF_GID
    assert ("rxe1, port 2" in refused.what, "the table is empty" in refused.what) == (True, True)


@pytest.mark.parametrize(
    ("end", "code", "what"),
    [
        (ProofEnd.LATE, ErrorCode.PROOF_LATE, "RDMA was not proven within 2.5 s: rxe0 hangs"),
        (ProofEnd.ENDED, ErrorCode.PROOF_ENDED, "the process that proves RDMA ended without an answer: rxe0 hangs"),
        (ProofEnd.UNAVAILABLE, ErrorCode.PROOF_UNAVAILABLE, "RDMA cannot be proven on this node: rxe0 hangs"),
    ],
)
def test_another_end_is_told_with_its_reason(end: ProofEnd, code: ErrorCode, what: str) -> None:
    refused = refusal_of(TASK, ProofAnswer(end=end, took_ms=1.0, text="rxe0 hangs"), 2.5)
    assert refused is not None
    assert (refused.code, refused.what, refused.where) == (code, what, TASK.where)


def test_what_the_prover_says_to_do_next_counts_before_the_usual_step() -> None:
    for hint, told in (("", "verbs_python"), ("give it LimitMEMLOCK=infinity", "LimitMEMLOCK")):
        refused = refusal_of(TASK, ProofAnswer(end=ProofEnd.UNAVAILABLE, took_ms=1.0, text="no", hint=hint), 2.5)
        assert refused is not None
        assert told in refused.hint

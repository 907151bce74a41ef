"""Turns the result of an RDMA proof into the error that refuses the container. A proof moves data through a device as a
test before the container starts. Pure."""

from __future__ import annotations

from nri_rdma.decide.proof import words_of
from nri_rdma.errors import ErrorCode, ProofError
from nri_rdma.model.proof import ProofAnswer, ProofEnd, ProofTask

_AGAIN = "if this repeats, see the daemon's log and `nri-rdma trace`"

_PYTHON = "see that verbs_python is the distribution's Python with its pyverbs (Debian: python3-pyverbs)"


def refusal_of(task: ProofTask, answer: ProofAnswer, within_s: float) -> ProofError | None:
    """Return the error that refuses a container, because data did not pass each port of the task within `within_s`
    seconds. None if it did."""
    words = _words(task, answer, within_s)
    if words is None:
        return None
    code, what, hint = words
    return ProofError(code, what, where=task.where, hint=hint)


def _words(task: ProofTask, answer: ProofAnswer, within_s: float) -> tuple[ErrorCode, str, str] | None:
    match answer.end:
        case ProofEnd.LATE:
            what = f"RDMA was not proven within {within_s:g} s{_because(answer)}"
            return ErrorCode.PROOF_LATE, what, f"the container is created again; {_AGAIN}, or raise proof_timeout"
        case ProofEnd.ENDED:
            what = f"the process that proves RDMA ended without an answer{_because(answer)}"
            return ErrorCode.PROOF_ENDED, what, f"the container is created again; {_AGAIN}"
        case ProofEnd.UNAVAILABLE:
            what = f"RDMA cannot be proven on this node{_because(answer)}"
            return ErrorCode.PROOF_UNAVAILABLE, what, answer.hint or _PYTHON
        case ProofEnd.ANSWERED:
            return _words_of_ports(task, answer)


def _words_of_ports(task: ProofTask, answer: ProofAnswer) -> tuple[ErrorCode, str, str] | None:
    proofs = {(it.device, it.port): it for it in answer.proofs}
    for asked in task.devices:
        proof = proofs.get((asked.device, asked.port))
        if proof is None:
            what = f"the answer says nothing of {asked.device}, port {asked.port}"
            return ErrorCode.PROOF_ENDED, what, f"the container is created again; {_AGAIN}"
        if proof.problem is not None:
            return words_of(proof.problem, asked.device, asked.port)
    return None


def _because(answer: ProofAnswer) -> str:
    return f": {answer.text}" if answer.text else ""

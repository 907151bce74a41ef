"""The kubelet retries soon after a refusal that begins in its own words; the other refusals name a way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nri_rdma.engine import refusals
from nri_rdma.errors import ErrorCode, NotReadyError
from tests.unit.attach.builders import make_pod

POD = make_pod()
SOON = "network is not ready: "
"""After this text the kubelet tries again in a second (pkg/kubelet/pod_workers.go, NetworkNotReadyErrorMsg)."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: refusals.not_ready(POD, "1 of 2 devices attached", "move: EBUSY"),
        lambda: refusals.being_attached(POD, "main"),
        lambda: refusals.not_decided("ml/train"),
    ],
    ids=["not ready", "being attached", "not decided"],
)
def test_what_a_retry_helps_begins_so_that_the_kubelet_retries_soon(make: Callable[[], NotReadyError]) -> None:
    error = make()
    assert error.what.startswith(SOON)
    assert error.code is ErrorCode.NOT_READY
    assert error.where == "ml/train"


@pytest.mark.parametrize(
    ("make", "code", "hint"),
    [
        (lambda: refusals.not_attached("ml/train"), ErrorCode.NOT_ATTACHED, "delete the pod"),
        (lambda: refusals.failed_late(POD, "no"), ErrorCode.ATTACH_FAILED, "delete the pod"),
        (
            lambda: refusals.late_attach_failed(POD, "main", "no", is_over=True),
            ErrorCode.ATTACH_FAILED,
            "delete the pod",
        ),
        (
            lambda: refusals.late_attach_failed(POD, "main", "no", is_over=False),
            ErrorCode.ATTACH_FAILED,
            "it is tried again",
        ),
        (lambda: refusals.returning(POD), ErrorCode.RETURNING, "needs a new sandbox"),
    ],
    ids=["not attached", "failed late", "claim over", "claim again", "returning"],
)
def test_a_refusal_that_no_retry_helps_says_what_does(
    make: Callable[[], NotReadyError], code: ErrorCode, hint: str
) -> None:
    error = make()
    assert not error.what.startswith(SOON)
    assert error.code is code
    assert hint in error.hint
    assert "ml/train" in error.where


def test_the_reason_of_the_last_attempt_is_in_the_text() -> None:
    assert "move: EBUSY" in str(refusals.not_ready(POD, "attempt 2 of 3", "move: EBUSY"))
    assert "rail0 is gone" in str(refusals.failed_late(POD, "rail0 is gone"))


def test_what_a_container_is_told_of_a_late_attach_fits_shares_and_claims() -> None:
    """A container with shares has no claim, and no CDI device that asks for anything."""
    for error in (refusals.being_attached(POD, "main"), refusals.late_attach_failed(POD, "main", "no", is_over=True)):
        assert "RDMA devices of" in error.what
        assert "CDI" not in str(error)
        assert "claim" not in str(error)

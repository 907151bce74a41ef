"""Steps are timed, and what a library raises in one says which it was."""

from __future__ import annotations

import pytest

from nri_rdma.decide.proof import words_of
from nri_rdma.host.verbs.steps import STEPS, StepError, Steps
from nri_rdma.model.proof import ProofProblem, ProofStep
from tests.fakes.pyverbs import PyverbsRDMAError


def test_the_error_of_a_library_has_the_step_and_the_kernels_number() -> None:
    steps = Steps()
    with pytest.raises(StepError) as caught, steps.step("register"):
        raise PyverbsRDMAError("Failed to register a MR", 12)
    text = "Failed to register a MR. Errno: 12, Cannot allocate memory"
    assert caught.value.problem == {"step": "register", "errno": 12, "text": text}
    assert list(steps.ms) == ["register"]


def test_an_error_that_knows_its_step_keeps_it() -> None:
    with pytest.raises(StepError) as caught, Steps().step("transfer"):
        raise StepError("gid", "none")
    assert caught.value.problem["step"] == "gid"


def test_every_step_means_something() -> None:
    assert set(STEPS) == set(ProofStep)
    for step in STEPS:
        assert words_of(ProofProblem(step=ProofStep(step), text=""), "mlx5_0", 1)

"""What a failed step of a proof means, for people."""

import errno

import pytest

from nri_rdma.decide.proof import WITHOUT_ADDRESS, words_of
from nri_rdma.errors import ErrorCode
from nri_rdma.model.proof import ProofProblem, ProofStep

NO_CONTEXT = "Failed to open device mlx5_0. Errno: 1, Operation not permitted"


@pytest.mark.parametrize("step", ProofStep)
def test_every_step_and_errno_has_a_code_a_sentence_and_a_next_step(step: ProofStep) -> None:
    for number in (None, *errno.errorcode):
        code, what, hint = words_of(ProofProblem(step=step, text="as the library says", errno=number), "mlx5_0", 2)
        assert code.startswith("PROOF-")
        assert what.endswith(": as the library says")
        assert ("mlx5_0, port 2" in what) == (step is not ProofStep.PYVERBS)
        assert hint


@pytest.mark.parametrize(
    ("step", "number", "code"),
    [
        (ProofStep.OPEN, None, ErrorCode.PROOF_DEVICE),
        (ProofStep.OPEN, errno.EAGAIN, ErrorCode.PROOF_LIMITS),
        (ProofStep.PORT, None, ErrorCode.PROOF_PORT),
        (ProofStep.GID, None, ErrorCode.PROOF_GID),
        (ProofStep.REGISTER, errno.ENOMEM, ErrorCode.PROOF_MEMLOCK),
        (ProofStep.REGISTER, errno.EAGAIN, ErrorCode.PROOF_LIMITS),
        (ProofStep.QP, errno.ENOMEM, ErrorCode.PROOF_MEMLOCK),
        (ProofStep.QP, errno.EAGAIN, ErrorCode.PROOF_LIMITS),
        (ProofStep.CONNECT, errno.ENOENT, ErrorCode.PROOF_DEVICE),
        (ProofStep.CONNECT, errno.EINVAL, ErrorCode.PROOF_TRANSFER),
        (ProofStep.TRANSFER, None, ErrorCode.PROOF_TRANSFER),
        (ProofStep.PYVERBS, None, ErrorCode.PROOF_UNAVAILABLE),
    ],
)
def test_the_code_follows_from_the_step_and_the_kernels_error(
    step: ProofStep, number: int | None, code: ErrorCode
) -> None:
    assert words_of(ProofProblem(step=step, text="", errno=number), "mlx5_0", 1)[0] is code


def test_iwarp_without_rdma_cm_lacks_a_node_and_not_a_route() -> None:
    text = "Failed to create CMEventChannel. Errno: 19, No such device"
    code, what, _ = words_of(ProofProblem(step=ProofStep.CONNECT, text=text, errno=errno.ENODEV), "siw0", 1)
    assert (code, "/dev/infiniband/rdma_cm" in what) == (ErrorCode.PROOF_DEVICE, True)


def test_iwarp_without_an_address_in_the_pod_is_told_how_to_get_one() -> None:
    text = f"{WITHOUT_ADDRESS} siw0 (addresses: 10.244.1.7)"
    code, _, hint = words_of(ProofProblem(step=ProofStep.CONNECT, text=text), "siw0", 1)
    assert (code, "mode: exclusive" in hint, "RoCE" in hint) == (ErrorCode.PROOF_TRANSFER, True, False)


def test_the_likely_cause_comes_before_the_words_of_the_library() -> None:
    _, what, _ = words_of(ProofProblem(step=ProofStep.OPEN, text=NO_CONTEXT, errno=errno.EPERM), "mlx5_0", 1)
    cause = "the container does not have the device's node in /dev/infiniband"
    assert what == f"mlx5_0, port 1, cannot be opened, probably because {cause}: {NO_CONTEXT}"


def test_a_limited_member_of_a_partition_is_the_subnet_managers() -> None:
    text = "the P_Key at index 0 of port 1 is 0x7fff: a limited member of its partition"
    code, _, hint = words_of(ProofProblem(step=ProofStep.PORT, text=text), "mlx5_0", 1)
    assert (code, "subnet manager" in hint) == (ErrorCode.PROOF_PORT, True)

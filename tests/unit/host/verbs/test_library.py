"""What the errors of pyverbs say: its releases give them in different forms."""

import pytest

from nri_rdma.host.verbs.library import errno_of, words
from tests.fakes.pyverbs import PyverbsRDMAError


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (PyverbsRDMAError("Failed", 12), 12),
        (PyverbsRDMAError("Failed to query gid tables of the device", -95), 95),
        (OSError(2, "No such file"), 2),
        (ImportError("version `IBVERBS_PRIVATE_59' not found"), None),
    ],
)
def test_the_kernels_number_is_found_where_there_is_one(error: Exception, number: int | None) -> None:
    assert errno_of(error) == number


def test_the_number_minus_one_is_none() -> None:
    error = ValueError("Failed to find device mlx5_0")
    error.error_code = -1  # type: ignore[attr-defined]  # as pyverbs has it where the kernel gave none
    assert errno_of(error) is None


def test_words_are_one_line_and_never_none() -> None:
    assert words(ValueError("a\n  b")) == "a b"
    assert words(ValueError()) == "ValueError"

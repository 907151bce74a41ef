"""What a machine lacks for a test against Go: the test is skipped with the reason.

Where NRI_RDMA_GO is `required`, nobody would read that, and the test fails.
"""

import os
from collections.abc import Mapping
from typing import NoReturn

import pytest


def leave_out(reason: str, environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Skip the test, with the reason; fail it where NRI_RDMA_GO says so."""
    if environment.get("NRI_RDMA_GO") == "required":
        pytest.fail(f"{reason}. Next: see to that, or unset NRI_RDMA_GO.", pytrace=False)
    pytest.skip(reason)

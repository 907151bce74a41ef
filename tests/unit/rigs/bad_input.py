"""What every refusal of bad input has, and how long a random text may take."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from nri_rdma.errors import ErrorCode, NriRdmaError

in_time = settings(deadline=2000, suppress_health_check=[HealthCheck.too_slow])
"""A text of these takes a millisecond or two; a machine under load is no failure."""


def assert_complete(error: NriRdmaError) -> None:
    """Code, cause, place and next step, on one line that any terminal shows."""
    assert isinstance(error.code, ErrorCode)
    assert error.what
    assert error.where
    assert error.hint
    assert str(error).isprintable()

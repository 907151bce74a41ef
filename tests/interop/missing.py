"""What a machine lacks for a test against Go: a developer's machine skips the test, in CI the test fails."""

import os
from collections.abc import Mapping
from typing import NoReturn

import pytest


def leave_out(reason: str, environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Skip the test, with the reason; fail it where the variable CI says that nobody would read the skip."""
    if environment.get("CI", "").lower() in {"true", "1"}:
        pytest.fail(f"{reason}. CI must have Go 1.25 or newer on the PATH, and the Go module proxy.", pytrace=False)
    pytest.skip(reason)

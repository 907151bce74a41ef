"""How a hook of ours ends: with a code, and when it refuses with one line that has an error of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nri_rdma.errors import ErrorCode

ONE_LINE = re.compile(r"nri-rdma: ([A-Z-]+): .+, .+\. Next: .+\.\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the hook ended."""

    code: int
    error: str
    seconds: float = 0.0

    @property
    def refused_with(self) -> str:
        """The code in its one line; the test fails when it was no such line."""
        found = ONE_LINE.fullmatch(self.error)
        assert self.code == 1, self
        assert found is not None, self.error
        assert found[1] in {str(code) for code in ErrorCode}
        return found[1]

"""The problems that a daemon has had since its start, but that do not stop it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """The part of the daemon that has the problem."""

    SETTINGS = "settings"
    RIGHTS = "rights"
    LOG = "log"
    TRACES = "traces"
    CLAIMS = "claims"
    SOCKETS = "sockets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One problem of the daemon. `why` is a sentence that also says what to do."""

    part: Part
    why: str

"""What a daemon goes without since its start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """The part of the daemon that lacks something."""

    SETTINGS = "settings"
    RIGHTS = "rights"
    LOG = "log"
    TRACES = "traces"
    CLAIMS = "claims"
    SOCKETS = "sockets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that is lacking; `why` is a sentence with the next step."""

    part: Part
    why: str

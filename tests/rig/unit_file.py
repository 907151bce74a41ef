"""What systemd/nri-rdma.service says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

UNIT = Path(__file__).resolve().parents[2] / "systemd/nri-rdma.service"


def _options() -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in UNIT.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name].append(value)
    return dict(found)


OPTIONS = _options()
"""The values of each option, in their order."""


def privileges() -> Sequence[str]:
    """The command that starts a program with the unit's capabilities and no way to others."""
    (names,) = OPTIONS["CapabilityBoundingSet"]
    assert OPTIONS["NoNewPrivileges"] == ["yes"]
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in names.split())
    return ("setpriv", "--bounding-set", f"-all,{kept}", "--inh-caps", "-all", "--no-new-privs")

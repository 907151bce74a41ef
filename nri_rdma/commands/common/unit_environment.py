"""The environment file of the systemd unit, which systemd gives to the daemon, but not to commands that a user runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nri_rdma.config.settings import ENVIRONMENT_PREFIX, Document, load
from nri_rdma.errors import SettingError

FILE = Path("nri-rdma/environment")
"""The file in /etc."""
UNITS = (Path("/etc/systemd/system/nri-rdma.service"), Path("/usr/lib/systemd/system/nri-rdma.service"))
_QUOTES = "'\""


def unit_variables(etc: Path) -> dict[str, str]:
    """Return the variables in the file: one NAME=VALUE per line, and a pair of quotes around a value is no part of
    it."""
    try:
        lines = (etc / FILE).read_text(errors="replace").splitlines()
    except OSError:  # the file need not be there, and may be for root only
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith(("#", ";")))
    return {name.strip(): _unquoted(value.strip()) for name, _, value in pairs}


def daemon_environment(etc: Path = Path("/etc")) -> Mapping[str, str]:
    """Return the variables of this process, and the settings that the unit gives to its daemon, if the unit is
    installed. Without them `install` would give runtimes a hook for another annotation prefix or socket than the
    daemon's. A setting that cannot be used is left out, as the daemon does."""
    if not any(unit.exists() for unit in UNITS):
        return os.environ
    settings = {name: value for name, value in unit_variables(etc).items() if name.startswith(ENVIRONMENT_PREFIX)}
    return {**{name: value for name, value in settings.items() if _is_usable(name, value)}, **os.environ}


def _is_usable(name: str, value: str) -> bool:
    try:
        load({}, {name: value}, Document(name="no file"))
    except SettingError:
        return False
    return True


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] in _QUOTES and value[0] == value[-1] else value

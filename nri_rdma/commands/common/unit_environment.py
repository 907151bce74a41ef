"""The settings in the environment file of the systemd unit, which systemd gives to the daemon, but not to commands that
a user runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nri_rdma.config.settings import ENVIRONMENT_PREFIX

UNIT_ENVIRONMENT = Path("/etc/nri-rdma/environment")


def environment() -> Mapping[str, str]:
    """Return the variables of this process, and the settings of the unit's daemon that this process lacks. Otherwise
    `install` would give runtimes a hook for another annotation prefix or socket than the daemon's."""
    try:
        lines = UNIT_ENVIRONMENT.read_text(errors="replace").splitlines()
    except OSError:  # the file need not be there, and may be for root only
        return os.environ
    pairs = (line.strip().partition("=") for line in lines)
    of_unit = {name: value.strip().strip("'\"") for name, _, value in pairs if name.startswith(ENVIRONMENT_PREFIX)}
    return {**of_unit, **os.environ}

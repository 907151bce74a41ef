"""Problems with which the daemon goes on, such as a missing permission. Each is logged once, and `status` shows it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from nri_rdma.attach.port import Kernel
from nri_rdma.attach.survey import refuse_powerless
from nri_rdma.config.settings import misnamed_variables
from nri_rdma.decide.policy import Policy
from nri_rdma.errors import PlacementError
from nri_rdma.model.request import Mode
from nri_rdma.model.trouble import Part, Trouble

log = logging.getLogger(__name__)


class Lacking:
    """The problems with which the daemon goes on. Problems are added while the daemon starts; any thread may read
    them."""

    def __init__(self, of_settings: Iterable[Trouble]) -> None:
        self._troubles: tuple[Trouble, ...] = ()
        self.add(of_settings)

    def add(self, troubles: Iterable[Trouble]) -> None:
        """Log and keep these problems."""
        for it in troubles:
            log.error("the daemon goes on without it", extra={"part": str(it.part), "error": it.why})
            self._troubles = (*self._troubles, it)

    def told(self, *, settings_are_others: bool) -> tuple[Mapping[str, str], ...]:
        """Return all problems as dictionaries with the fields of Trouble. `settings_are_others`: a reload has replaced
        the settings of the start, so problems with the settings of the start are left out."""
        return tuple(asdict(it) for it in self._troubles if not (it.part is Part.SETTINGS and settings_are_others))


def warn_of_variables(environment: Mapping[str, str]) -> None:
    """Log environment variables that nothing reads although their names are similar to a setting's variable."""
    for written, near in misnamed_variables(environment):
        log.warning(
            "this environment variable is not used, its name may be wrong", extra={"variable": written, "meant": near}
        )


def missing_right(policy: Policy, kernel: Kernel) -> tuple[Trouble, ...]:
    """Return a Trouble if a pool serves devices exclusively and this process lacks the permission to move them."""
    if not any(Mode.EXCLUSIVE in pool.modes for pool in policy.pools.values()):
        return ()
    try:
        refuse_powerless(kernel)
    except PlacementError as error:
        return (Trouble(part=Part.RIGHTS, why=str(error)),)
    return ()

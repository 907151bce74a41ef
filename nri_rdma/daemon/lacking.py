"""What a daemon goes without since its start: each is logged once, and told for as long as it lacks."""

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
    """Collects while the daemon starts; read by other threads after that."""

    def __init__(self, of_settings: Iterable[Trouble]) -> None:
        self._troubles: tuple[Trouble, ...] = ()
        self.add(of_settings)

    def add(self, troubles: Iterable[Trouble]) -> None:
        """Log these, and keep them."""
        for it in troubles:
            log.error("the daemon goes on without it", extra={"part": str(it.part), "error": it.why})
            self._troubles = (*self._troubles, it)

    def told(self, *, settings_are_others: bool) -> tuple[Mapping[str, str], ...]:
        """Return what is lacking, as Trouble has it. Settings that could not be read are no trouble any more when
        others are in their place."""
        return tuple(asdict(it) for it in self._troubles if not (it.part is Part.SETTINGS and settings_are_others))


def warn_of_variables(environment: Mapping[str, str]) -> None:
    """Log the variables that were probably meant to be a setting's, and are none."""
    for written, near in misnamed_variables(environment):
        log.warning("nothing reads a variable of the environment", extra={"variable": written, "meant": near})


def missing_right(policy: Policy, kernel: Kernel) -> tuple[Trouble, ...]:
    """Return why no pod gets a device exclusively, if a pool serves that and this process may move nothing."""
    if not any(Mode.EXCLUSIVE in pool.modes for pool in policy.pools.values()):
        return ()
    try:
        refuse_powerless(kernel)
    except PlacementError as error:
        return (Trouble(part=Part.RIGHTS, why=str(error)),)
    return ()

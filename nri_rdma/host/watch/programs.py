"""Finds changes of the eBPF programs on netdevs. The kernel does not announce them, so they are looked for
periodically."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from nri_rdma.attach.port import KernelError
from nri_rdma.model.device import EbpfPrograms, RdmaDevice

log = logging.getLogger(__name__)


class ProgramNews:
    """Compares the eBPF programs on netdevs with those of the last reading of the node."""

    def __init__(self, read: Callable[[Collection[int]], Mapping[int, EbpfPrograms]]) -> None:
        """`read` returns the programs by ifindex, for the links that have any. It raises KernelError."""
        self._read = read
        self._problem = ""

    def are_there(self, devices: Iterable[RdmaDevice], ifindexes: Collection[int]) -> bool:
        """Return whether the programs on these links differ from those that the devices' netdevs had at the last
        reading.

        False if the programs cannot be read. That is logged once, until the reason changes.
        """
        netdevs = (netdev for device in devices for netdev in device.netdevs)
        known = {netdev.ifindex: netdev.programs for netdev in netdevs if netdev.programs.are_there}
        try:
            found = self._read(ifindexes)
        except KernelError as error:
            problem, self._problem = self._problem, str(error)
            if problem != self._problem:
                log.warning("eBPF programs on netdevs cannot be read", extra={"error": self._problem})
            return False
        self._problem = ""
        return found != known

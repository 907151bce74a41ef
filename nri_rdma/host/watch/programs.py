"""News of eBPF programs on netdevs, of which the kernel gives none: somebody has to look again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from nri_rdma.attach.port import KernelError
from nri_rdma.model.device import EbpfPrograms, RdmaDevice

log = logging.getLogger(__name__)


class ProgramNews:
    """Compares the programs that are on netdevs with those of the last reading of the node."""

    def __init__(self, read: Callable[[Collection[int]], Mapping[int, EbpfPrograms]]) -> None:
        """`read` returns the programs on links by ifindex, of those that have any. It raises KernelError."""
        self._read = read
        self._problem = ""

    def are_there(self, devices: Iterable[RdmaDevice], ifindexes: Collection[int]) -> bool:
        """Return whether other programs are on these links than the devices' netdevs had; False where that cannot be
        seen, which is logged once as long as it stays so."""
        netdevs = (netdev for device in devices for netdev in device.netdevs)
        known = {netdev.ifindex: netdev.programs for netdev in netdevs if netdev.programs.are_there}
        try:
            found = self._read(ifindexes)
        except KernelError as error:
            problem, self._problem = self._problem, str(error)
            if problem != self._problem:
                log.warning("eBPF programs on netdevs are not looked for", extra={"error": self._problem})
            return False
        self._problem = ""
        return found != known

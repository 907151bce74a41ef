"""Finds changes of the eBPF programs on netdevs. The kernel does not announce such changes, so they are looked for
periodically."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from nri_rdma.attach.port import KernelError
from nri_rdma.model.device import EbpfPrograms, RdmaDevice

log = logging.getLogger(__name__)


class ProgramNews:
    """Compares the eBPF programs on netdevs now with those at the last reading of the node."""

    def __init__(self, read: Callable[[Collection[int]], Mapping[int, EbpfPrograms]]) -> None:
        """`read` returns the eBPF programs of the links with given ifindexes, and leaves out links without programs. It
        raises KernelError if the kernel refuses the query."""
        self._read = read
        self._problem = ""

    def are_there(self, devices: Iterable[RdmaDevice], ifindexes: Collection[int]) -> bool:
        """Return whether the eBPF programs on these links differ from those that the devices' netdevs had at the last
        reading of the node.

        False if the programs cannot be read. The reason is logged once, until it changes.
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

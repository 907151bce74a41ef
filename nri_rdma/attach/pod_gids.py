"""The GIDs by which the ports of an attach send, read where its devices are.

Nobody's attach fails for want of them: what cannot be read, or does not come in time, is told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.port import Kernel, KernelError, Namespace
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.decide.inject import AttachedDevice, AttachedRequest, live_ports, usable_ports
from nri_rdma.decide.port_gids import NO_GIDS, Gids, gid_words, moved_words, port_gid, with_problem
from nri_rdma.model.device import CharKind, Protocol
from nri_rdma.model.gid import Gid, PortGid
from nri_rdma.model.network import IpAddress
from nri_rdma.model.request import Use
from nri_rdma.observe.spans import Recorder

log = logging.getLogger(__name__)

GID_WAIT_S = 1.0
"""How long an attach waits for the GIDs of addresses that are in the pod. The kernel adds each by a worker of its own,
within milliseconds where nothing is wrong; a pod waits no longer for one that does not come, and is told."""
_PAUSE_S = 0.02
GAP, GAP_LATER = 32, 128
"""So many entries in a row that are not in use end a table. The kernel gives a new GID the first entry that is free, so
that at the end of an attach the pod's own are among the first; later those before them may have been removed."""
_WITH_GIDS = (Protocol.IB, Protocol.ROCE)

_Given = list[tuple[AttachedRequest, AttachedDevice]]
_Tables = Mapping[tuple[str, int], tuple[Gid, ...]]


class PodGids:
    """Blocks on the kernel: for workers."""

    def __init__(self, kernel: Kernel, spans: Recorder, wait_s: float) -> None:
        """`wait_s` is GID_WAIT_S where it is the kernel that fills the tables; a saved tree of sysfs gets no new
        ones."""
        self._kernel = kernel
        self._spans = spans
        self._wait_s = wait_s

    def again(self, attachment: Attachment, record: SandboxRecord) -> SandboxRecord:
        """The record with the GIDs of this moment, where they may be others. What the pod's containers were told may be
        out of date: that is logged."""
        if not attachment.now.gids_are_old:
            return record
        attachment.change(gids_are_old=False)
        gids = self._seen(record, attachment.namespace, GAP_LATER)[0].since(record.gids)
        if gids.moved and gids.moved != record.gids.moved:
            log.warning("GIDs have moved", extra={"pod": str(record.pod), "gids": list(moved_words(gids))})
        return replace(record, gids=gids)

    def at_the_end(self, attachment: Attachment, record: SandboxRecord) -> Gids:
        """The GIDs of an attach whose steps are done; wait a while for those of the pod's addresses, since no news
        tells that the kernel has added one. Raises NotReadyError when the attachment ends meanwhile."""
        until = time.monotonic() + self._wait_s
        with self._spans.span("gids") as span:
            gids, is_awaited = self._seen(record, attachment.namespace, GAP)
            while is_awaited and time.monotonic() < until:
                time.sleep(_PAUSE_S)
                attachment.refuse_ended()
                gids, is_awaited = self._seen(record, attachment.namespace, GAP)
            words = [gids.problem] if gids.problem else [gid_words(it) for it in gids.ports]
            span.attributes["rdma.gids"] = "; ".join(words)
        if is_awaited:
            log.warning("a GID of the pod did not come", extra={"pod": str(record.pod), "gids": words})
        return gids

    def _seen(self, record: SandboxRecord, namespace: Namespace | None, gap: int) -> tuple[Gids, bool]:
        """The GIDs, and whether a netdev of the pod has an address whose GID is not there yet."""
        given = [(request, item) for request in record.attached for item in request.devices if _has_gids(request, item)]
        if not given:
            return NO_GIDS, False
        try:
            tables = self._tables(record, namespace, given, gap)
            addresses = self._addresses(record, namespace) if tables else {}
            foreign = self._foreign(given, tables)
        except KernelError as error:
            log.warning("GIDs not read", extra={"pod": str(record.pod), "error": str(error)})
            return with_problem(f"GIDs not read: {error}"), False
        own = frozenset(address for found in addresses.values() for address in found)
        ports: dict[str, PortGid] = {}
        is_awaited = False
        for request, item in given:
            has_addresses = any(addresses.get(name) for name in item.netdev_names)
            for device, number in _places(request, item):
                table = tables.get((device, number))
                if table is not None:
                    version = request.admitted.request.roce_version or 2
                    found = port_gid(device, number, table, own, version, foreign)
                    is_awaited |= has_addresses and not found.is_own
                    on_host = not record.pod.netns_path and found.gid is not None  # the host's addresses are its own
                    ports[found.place] = replace(found, is_own=True) if on_host else found
        if not ports:
            return NO_GIDS, False
        return Gids.of(ports.values(), _computing(given)), is_awaited

    def _tables(self, record: SandboxRecord, namespace: Namespace | None, given: _Given, gap: int) -> _Tables:
        """Read the tables where the devices are: those that moved show them in the pod only."""
        moved = {move.index for move in record.plan.rdma_moves}
        here = {place for it, item in given if item.device.kernel_index not in moved for place in _places(it, item)}
        there = {place for it, item in given for place in _places(it, item)} - here
        tables = self._kernel.gid_tables(self._kernel.host, here, gap) if here else {}
        return (
            {**tables, **self._kernel.gid_tables(namespace, there, gap)} if there and namespace is not None else tables
        )

    def _foreign(self, given: _Given, tables: _Tables) -> Collection[str]:
        """The netdevs with GIDs that are neither the devices' own nor on the host: in this pod, or in another one."""
        known = {"", *(name for _, item in given for name in item.netdev_names)}
        known.update(netdev.name for _, item in given for netdev in item.device.netdevs)
        others = {gid.netdev for table in tables.values() for gid in table} - known
        return others - {link.name for link in self._kernel.links(self._kernel.host)} if others else others

    def _addresses(self, record: SandboxRecord, namespace: Namespace | None) -> Mapping[str, Collection[IpAddress]]:
        """The addresses of the pod by netdev, without link-local ones."""
        if namespace is not None:
            return self._addresses_in(namespace)
        if not record.pod.netns_path:
            return {}
        with closing(self._kernel.open_namespace(record.pod.netns_path)) as opened:
            return self._addresses_in(opened)

    def _addresses_in(self, namespace: Namespace) -> Mapping[str, Collection[IpAddress]]:
        names = {link.ifindex: link.name for link in self._kernel.links(namespace)}
        found = self._kernel.routing(namespace).addresses
        return {
            names[index]: [it.ip for it in addresses if not it.ip.is_link_local and not it.ip.is_loopback]
            for index, addresses in found.items()
            if index in names
        }


def _has_gids(request: AttachedRequest, item: AttachedDevice) -> bool:
    """Return whether containers can send by a GID of the device."""
    return CharKind.UVERBS in request.admitted.request.char_kinds and item.device.protocol in _WITH_GIDS


def _computing(given: _Given) -> set[str]:
    """The devices that NCCL and UCX are told of: those with a live port, where any has one."""
    asked = [(it.admitted.mode, item.device) for it, item in given if it.admitted.request.use is not Use.STORAGE]
    return {it.name for mode, it in asked if live_ports(it, mode)} or {it.name for _, it in asked}


def _places(request: AttachedRequest, item: AttachedDevice) -> Iterator[tuple[str, int]]:
    """Yield the ports of a device that its containers are told of."""
    return ((item.device.name, number) for number in usable_ports(item.device, request.admitted.mode))

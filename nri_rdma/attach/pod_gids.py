"""The GIDs that the ports of an attach send with, read from the pod's network namespace or from the host.

A missing GID never fails an attach: a GID that cannot be read, or does not appear in time, is only reported.
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
"""How long, in seconds, an attach waits for the GIDs of the pod's addresses. The kernel adds each of them in a worker
of its own, usually within milliseconds. A GID that is still missing then is reported."""
_PAUSE_S = 0.02
GAP, GAP_LATER = 32, 128
"""The number of consecutive unused entries after which a reader takes a GID table as ended: GAP at the end of an
attach, GAP_LATER in later reads. The kernel puts a new GID into the first free entry, so a pod's new GIDs are near the
start. Later the entries before them may become unused."""
_WITH_GIDS = (Protocol.IB, Protocol.ROCE)

_Given = list[tuple[AttachedRequest, AttachedDevice]]
_Tables = Mapping[tuple[str, int], tuple[Gid, ...]]


class PodGids:
    """Reads the GIDs of attachments. Its methods block on the kernel, so only workers may call them."""

    def __init__(self, kernel: Kernel, spans: Recorder, wait_s: float) -> None:
        """`wait_s` is GID_WAIT_S if the kernel fills the GID tables, and 0 for a saved sysfs tree, which gets no new
        entries."""
        self._kernel = kernel
        self._spans = spans
        self._wait_s = wait_s

    def again(self, attachment: Attachment, record: SandboxRecord) -> SandboxRecord:
        """Return the record with the present GIDs, which are reread only if they may have changed. A changed GID is
        logged, because the environment of the pod's running containers may name the old one."""
        if not attachment.now.gids_are_old:
            return record
        attachment.change(gids_are_old=False)
        gids = self._seen(record, attachment.now.namespace, GAP_LATER)[0].since(record.gids)
        if gids.moved and gids.moved != record.gids.moved:
            log.warning("GIDs have moved", extra={"pod": str(record.pod), "gids": list(moved_words(gids))})
        return replace(record, gids=gids)

    def at_the_end(self, attachment: Attachment, record: SandboxRecord) -> Gids:
        """Return the GIDs of an attach whose steps are done. Polls at most `wait_s` seconds for the GIDs of the pod's
        addresses, because the kernel does not report new GIDs. Raises NotReadyError if the attachment ends
        meanwhile."""
        until = time.monotonic() + self._wait_s
        with self._spans.span("gids") as span:
            gids, is_awaited = self._seen(record, attachment.now.namespace, GAP)
            while is_awaited and time.monotonic() < until:
                time.sleep(_PAUSE_S)
                attachment.refuse_ended()
                gids, is_awaited = self._seen(record, attachment.now.namespace, GAP)
            words = [gids.problem] if gids.problem else [gid_words(it) for it in gids.ports]
            span.attributes["rdma.gids"] = "; ".join(words)
        if is_awaited:
            log.warning("a GID of the pod did not appear", extra={"pod": str(record.pod), "gids": words})
        return gids

    def _seen(self, record: SandboxRecord, namespace: Namespace | None, gap: int) -> tuple[Gids, bool]:
        """Return the GIDs of the record's ports, and whether the GID of one of the pod's addresses is still missing.
        `gap` is the number of consecutive unused entries after which a GID table counts as read."""
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
                    # A pod without a namespace of its own has the host's addresses.
                    on_host = not record.pod.netns_path and found.gid is not None
                    ports[found.place] = replace(found, is_own=True) if on_host else found
        if not ports:
            return NO_GIDS, False
        return Gids.of(ports.values(), _computing(given)), is_awaited

    def _tables(self, record: SandboxRecord, namespace: Namespace | None, given: _Given, gap: int) -> _Tables:
        """Return the GID tables by device name and port: read in the pod for devices that moved there, on the host for
        the others. `given` are the devices to read; `gap` is the number of consecutive unused entries that ends a
        table."""
        moved = {move.index for move in record.plan.rdma_moves}
        here = {place for it, item in given if item.device.kernel_index not in moved for place in _places(it, item)}
        there = {place for it, item in given for place in _places(it, item)} - here
        tables = self._kernel.gid_tables(self._kernel.host, here, gap) if here else {}
        return (
            {**tables, **self._kernel.gid_tables(namespace, there, gap)} if there and namespace is not None else tables
        )

    def _foreign(self, given: _Given, tables: _Tables) -> Collection[str]:
        """Return the names of netdevs that are neither on the host nor known as netdevs of the devices in `given`,
        although a GID in `tables` names them. They are in this pod or in another one."""
        known = {"", *(name for _, item in given for name in item.netdev_names)}
        known.update(netdev.name for _, item in given for netdev in item.device.netdevs)
        others = {gid.netdev for table in tables.values() for gid in table} - known
        return others - {link.name for link in self._kernel.links(self._kernel.host)} if others else others

    def _addresses(self, record: SandboxRecord, namespace: Namespace | None) -> Mapping[str, Collection[IpAddress]]:
        """Return the pod's addresses by netdev, without link-local and loopback ones."""
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
    """Return whether containers can send with a GID of the device. They can if they get its uverbs node and its
    protocol has GIDs."""
    return CharKind.UVERBS in request.admitted.request.char_kinds and item.device.protocol in _WITH_GIDS


def _computing(given: _Given) -> set[str]:
    """Return the devices that NCCL and UCX are told to use: those with a live port, or all of them if no device has
    one."""
    asked = [(it.admitted.mode, item.device) for it, item in given if it.admitted.request.use is not Use.STORAGE]
    return {it.name for mode, it in asked if live_ports(it, mode)} or {it.name for _, it in asked}


def _places(request: AttachedRequest, item: AttachedDevice) -> Iterator[tuple[str, int]]:
    """Yield the device name and the number of each port that the device's containers are told to use."""
    return ((item.device.name, number) for number in usable_ports(item.device, request.admitted.mode))

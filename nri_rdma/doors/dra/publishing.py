"""Keeps the node's ResourceSlices equal to its devices: one thread compares and writes the slices, another watches
them.

The kubelet deletes all slices of its node when it starts, and the slices of a driver whose socket is missing for 30 s.
The watch reports the deletion, and the slices are written again. Nothing is written without a change.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any  # Any: JSON

from nri_rdma.decide.advertised import DRIVER, Advertised
from nri_rdma.doors.dra.slices import PATH, is_published, new_slice, next_generation, rivals, selector, specs_of
from nri_rdma.host.kubernetes.api import ApiServer
from nri_rdma.model.driver import Published
from nri_rdma.text.api_objects import reading, word

log = logging.getLogger(__name__)

WATCH_S = 300.0
"""Duration of one watch in seconds. After each watch the slices are compared with the node's devices."""
QUIET_S = 5.0
"""Minimum time between two writes, so that a flapping link does not load the API server."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 30.0
"""First and longest pause after errors. Each pause is twice as long as the pause before."""
CLOSE_S = 0.5
"""How many seconds `close` waits for a write. A write that takes longer is repeated by the next daemon, and the service
manager should not wait for it."""


class Publisher:
    """Publishes the node's devices as ResourceSlices. `start` starts its threads, and `close` ends them."""

    def __init__(self, api: ApiServer, node: str, devices: Callable[[], Sequence[Advertised]]) -> None:
        self._api = api
        self._node = node
        self._devices = devices
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_due = False
        self._is_doubtful = False
        """Whether somebody may have changed the slices at the API server since they were last compared with the node's
        devices."""
        self._compared: Sequence[Advertised] = ()
        """The node's devices with which the slices were last compared."""
        self._written = -QUIET_S
        self._watcher = threading.Thread(target=self._watch, name="slices-watch", daemon=True)
        self._writer = threading.Thread(target=self._write_when_due, name="slices", daemon=True)
        self.published = Published()
        """The state of the slices after the last comparison or write."""
        self.rivals: Mapping[str, Sequence[str]] = {}
        """Other drivers that publish devices which we publish, too, with the names of those devices."""

    def start(self) -> None:
        """Start publishing; if the threads already run, have them compare the slices with the node's devices again.

        Called when the kubelet has registered the driver. If devices were published earlier, a pod could be scheduled
        before the kubelet knows the driver, and the kubelet would retry it only after a minute.
        """
        with self._changed:
            for thread in (self._writer, self._watcher):
                if thread.ident is None and not self._is_closed:
                    thread.start()
        self.look()

    def node_was_read(self) -> None:
        """Have the writer thread update the slices, if the devices differ from those of the last update. Called after
        each scan of the node; each start of a pod causes a scan."""
        with self._changed:
            self._is_due = True
            self._changed.notify_all()

    def look(self) -> None:
        """Have the writer thread read the slices from the API server, and write those that differ from the node's
        devices. Somebody else may have changed them."""
        with self._changed:
            self._is_doubtful = True
        self.node_was_read()

    def close(self) -> None:
        """End both threads. The slices stay at the API server until the kubelet notices that the driver is gone.

        If the watching thread is blocked in a call, it ends with the process.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._writer.ident is not None:
            self._writer.join(CLOSE_S)

    # -- below -------------------------------------------------------------------------------------------------------

    def _write_when_due(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._await_due():
            try:
                self._compare()
                pause_s = FIRST_PAUSE_S
            except Exception as error:  # noqa: BLE001 - logged, and tried again: the thread must not end
                self._failed(str(error))
                self._pause(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
                self.look()

    def _await_due(self) -> bool:
        """Wait for a change, and then until QUIET_S after the last write. Returns False when the publisher is
        closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_due or self._is_closed)
            quiet = self._written + QUIET_S
            self._changed.wait_for(lambda: self._is_closed, max(0.0, quiet - time.monotonic()))
            self._is_due = False
            return not self._is_closed

    def _failed(self, why: str) -> None:
        before = self.published
        if why != before.error:
            log.warning("the node's devices are not published", extra={"error": why})
        self.published = replace(before, error=why, error_since=before.error_since or time.time())

    def _compare(self) -> None:
        devices = self._devices()
        with self._changed:
            is_doubtful, self._is_doubtful = self._is_doubtful, False
        if is_doubtful or devices != self._compared:
            self.published = self._publish(devices)
            self._compared = devices

    def _publish(self, devices: Sequence[Advertised]) -> Published:
        """Write the slices that differ from the node's devices, and return the resulting state. Raises ApiServerError
        if the API server refuses or does not answer."""
        every = self._api.items(PATH, selector(self._node, driver=""))
        with reading("list of ResourceSlices", PATH):
            others = rivals(every, devices)
            found = [it for it in every if it["spec"]["driver"] == DRIVER]
            names = [word(it["metadata"]["name"]) for it in found]
            is_same = is_published(found, self._node, devices)
            specs = specs_of(self._node, devices, next_generation(found))
        self._tell_rivals(others)
        if is_same:
            return _published([it["spec"] for it in found], devices, self.published.written)
        node = self._api.get(f"/api/v1/nodes/{self._node}")
        with reading("Node", self._node):
            uid = word(node["metadata"]["uid"])
        self._written = time.monotonic()  # before the calls: if one fails, others may have written
        for number, spec in enumerate(specs):
            if number < len(found):
                self._api.replace(f"{PATH}/{names[number]}", {**found[number], "spec": spec})
            else:
                self._api.create(PATH, new_slice(spec, self._node, uid, number))
        for old in names[len(specs) :]:
            self._api.delete(f"{PATH}/{old}")
        log.info("devices published", extra={"devices": len(devices), "slices": len(specs)})
        return _published(specs, devices, time.time())

    def _tell_rivals(self, found: Mapping[str, Sequence[str]]) -> None:
        if found != self.rivals:
            for driver, devices in found.items():
                extra = {"driver": driver, "devices": list(devices)}
                log.warning(
                    "another driver publishes devices of ours, and a device can have one driver only", extra=extra
                )
        self.rivals = found

    def _watch(self) -> None:
        """Watch the slices at the API server. After each event, and after the end of each watch, have the writer thread
        compare them with the node's devices.

        The pause before the next watch doubles each time a watch ends early, with or without an error.
        """
        pause_s = FIRST_PAUSE_S
        while not self._is_closed:
            began = time.monotonic()
            try:
                for event in self._api.watch(PATH, selector(self._node), WATCH_S):
                    if event["type"] != "BOOKMARK":
                        self.look()
            except Exception as error:  # noqa: BLE001 - tried again: the thread must not end
                log.debug("the watch of slices ended", extra={"error": str(error)})
            if time.monotonic() - began > LAST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            self._pause(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            self.look()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, seconds)


def _published(specs: Sequence[Mapping[str, Any]], devices: Sequence[Advertised], written: float) -> Published:
    generation = specs[0]["pool"]["generation"]
    return Published(devices=len(devices), slices=len(specs), generation=generation, written=written)

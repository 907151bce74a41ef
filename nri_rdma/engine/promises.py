"""Promises: devices that are selected and reserved for a container before the container is created.

podman writes a container's device nodes and variables before the container has a process or a network namespace, so
nothing can be attached at that time. Law: a promise is redeemed once, by the start of the sandbox with the same id, or
it lapses and its devices are free for other containers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from nri_rdma.attach.attachment import Selection
from nri_rdma.attach.plan import names_in_pod
from nri_rdma.attach.survey import expected_requests
from nri_rdma.attach.timers import Schedule, start_timer
from nri_rdma.decide.inject import inject, refuse_conflicts
from nri_rdma.engine.container import Container, Start
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.refusals import RefusedLately, refuse_unusable_id
from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError, RequestError
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.request import DeviceRequest
from nri_rdma.observe.spans import Recorder

log = logging.getLogger(__name__)

LAPSE_S = 15.0
"""How long devices stay reserved for a container that is being created; podman takes less than a second. If a container
starts later, its devices are selected again, and it is refused if these are not the devices that it was created for."""
_LOOPBACK = "lo"


class Promises:
    """The promises that are neither redeemed nor lapsed. Thread-safe, if there is one call at a time for each
    sandbox."""

    def __init__(
        self,
        is_attached: Callable[[str], bool],
        placer: Placer,
        node: NodeCache,
        refused: RefusedLately,
        prefix: str,
        spans: Recorder,
        schedule: Schedule = start_timer,
    ) -> None:
        """`is_attached` returns whether a sandbox has attachments; then its reservations are not released here.
        `prefix` is the prefix of nri-rdma's annotations."""
        self._is_attached = is_attached
        self._placer = placer
        self._node = node
        self._prefix = prefix
        self._spans = spans
        self._refused = refused
        self._schedule = schedule
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Selection, Callable[[], None]]] = {}

    def make(
        self, container: Container, links: Collection[str], interface: str | None, deadline: float
    ) -> ContainerEdits:
        """Select and reserve devices for a container of podman or Docker, which has no pod; return its edits, or raise
        the error that refuses it. `links`: the names of the netdevs that its network has already; `interface`: its
        network interface, as in AttachedRequest."""
        try:
            return self._make(container, links, interface, deadline)
        except NriRdmaError as error:
            self._refused.note("precreate", container.pod, error)
            raise

    def redeem(self, sandbox_id: str) -> Selection | None:
        """Return the devices that were promised to a sandbox, and forget the promise; the devices stay reserved. Return
        None if nothing was promised, or the promise has lapsed."""
        with self._lock:
            kept = self._kept.pop(sandbox_id, None)
        if kept is None:
            return None
        kept[1]()
        return kept[0]

    def withdraw(self, sandbox_id: str) -> None:
        """Release the devices that were promised to a sandbox, if there are any."""
        if self.redeem(sandbox_id) is not None:
            self._release(sandbox_id)

    def _make(
        self, container: Container, links: Collection[str], interface: str | None, deadline: float
    ) -> ContainerEdits:
        pod, placer = container.pod, self._placer
        start = Start.of(pod, container.annotations, container.asker, self._prefix, self._spans)
        if start.problem is not None:
            raise start.problem
        placer.await_specs(pod, deadline)
        asked = placer.asked(pod, start.request)
        if asked is None:
            return ContainerEdits()
        refuse_unusable_id(pod)
        for request in asked.request.requests:
            _refuse_other_container(request, container.name, self._prefix)
        self.withdraw(pod.sandbox_id)
        chosen = placer.choose(pod, asked, container.asker, deadline)
        try:
            edits = self._edits(container, links, interface, chosen)
        except NriRdmaError:
            self._release(pod.sandbox_id)
            raise
        self._keep(pod.sandbox_id, chosen)
        return edits

    def _edits(
        self, container: Container, links: Collection[str], interface: str | None, chosen: Selection
    ) -> ContainerEdits:
        """Return a container's edits for the selected devices. Raise PlacementError if netdevs would have to move into
        a container on the host's network, or if the paths of device nodes or the names of netdevs are taken."""
        pod, names = container.pod, names_in_pod(chosen.placed, {_LOOPBACK, *links})
        if names and not pod.netns_path:
            what = "this container is on the host's network: a netdev cannot be moved into it"
            hint = "take the host's network away, or ask for mode: shared"
            raise PlacementError(ErrorCode.HOST_NETWORK, what, where=str(pod), hint=hint)
        attached = expected_requests(chosen.placed, names, interface)
        edits = inject(attached, chosen.rdma_cm, container.name, container.env, container.devices, None)
        refuse_conflicts(edits, container.devices, self._node.current.devices, str(pod))
        return edits

    def _keep(self, sandbox_id: str, chosen: Selection) -> None:
        def lapse() -> None:
            with self._lock:
                kept = self._kept.get(sandbox_id)
                if kept is None or kept[0] is not chosen:
                    return  # the promise was redeemed, or another one has replaced it
                del self._kept[sandbox_id]
            log.info("a container was not created: its devices are free again", extra={"sandbox": sandbox_id})
            self._release(sandbox_id)

        with self._lock:
            self._kept[sandbox_id] = (chosen, self._schedule(LAPSE_S, lapse))

    def _release(self, sandbox_id: str) -> None:
        if not self._is_attached(sandbox_id):
            self._placer.release(sandbox_id)


def _refuse_other_container(request: DeviceRequest, name: str, prefix: str) -> None:
    """Raise RequestError for a request that names other containers of a pod."""
    if not request.scope.covers(name):
        raise RequestError(
            ErrorCode.ANNOTATION_PLACE,
            "this container has no pod, so that it cannot ask for other containers",
            where=request.where,
            hint=f"write the list as {prefix}/pod, without containers: in it",
        )

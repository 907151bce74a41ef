"""StartContainer: the last moment before a container's process runs. Its cgroup exists."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.holdings import Holdings
from nri_rdma.engine.alignment_check import AlignmentCheck
from nri_rdma.engine.container import FindImage, ShowGpus
from nri_rdma.engine.gate import Gate
from nri_rdma.engine.image_check import ImageCheck
from nri_rdma.engine.limiter import Limiter
from nri_rdma.engine.sandbox import Sandboxes
from nri_rdma.model.pod import Pod

log = logging.getLogger(__name__)

_REPORTED_ANSWERS = 2
"""The kubelet recreates a container whose last start failed: the repeated answer is logged once."""


class ContainerStart:
    """Handles the start of containers for every door. Safe for use by several threads."""

    def __init__(
        self, attachments: Attachments, known: Sandboxes, limiter: Limiter, alignment: AlignmentCheck, gate: Gate
    ) -> None:
        self._attachments = attachments
        self._known = known
        self.limiter = limiter
        self.gate = gate
        self.images: ImageCheck | None = None
        """Checks the images of containers; None: nobody does."""
        self._alignment = alignment

    def created(self, sandbox_id: str, container: str, cgroups_path: str) -> None:
        """Record that CreateContainer of this container is being answered."""
        attachment = next(iter(self._attachments.of(sandbox_id)), None)
        if attachment is None:
            self._known.take(sandbox_id).remember_answer(container, cgroups_path)
            return
        attachment.containers.remember(container, cgroups_path)
        if attachment.containers.answered(container) == _REPORTED_ANSWERS:
            log.warning(
                "the container did not start after our last answer: somebody else refused it",
                extra={"pod": str(attachment.pod), "container": container, "next": "see the events of the pod"},
            )

    def start(
        self,
        sandbox_id: str,
        container: str,
        cgroups_path: str,
        container_id: str,
        gpus: ShowGpus | None,
        image: FindImage | None,
    ) -> None:
        """Write the limits that the runtime was not given, and check the container's devices against its GPUs, which
        `gpus` returns, and its image, which `image` finds (None: nobody knows). Raise LimitsError, ProofError where it
        was to be proven and was not, or PlacementError where a strict request does not fit the GPUs."""
        holdings = self._attachments.of(sandbox_id)
        if not holdings:
            return
        record = holdings[0].now.record
        holdings.containers.started(container, record.attached if record is not None else ())
        self.gate.refuse_unproven(holdings, container, container_id, cgroups_path)
        self.limiter.limit_starting(holdings, container, cgroups_path, container_id)
        if gpus is not None:
            self._alignment.check(holdings.pod, holdings.attached, container, gpus)
        if image is not None and self.images is not None:
            self.images.begin(holdings, container, container_id, image)

    def start_alone(self, pod: Pod) -> None:
        """Write the limits of a container that stands for itself: its OCI runtime was told of none. Raise
        LimitsError."""
        holdings = self._attachments.of(pod.sandbox_id)
        if holdings:
            holdings.containers.remember(pod.name, pod.cgroups_path)
            self.limiter.limit_alone(holdings, pod.name, pod.cgroups_path, pod.pid)

    def journals_read(self) -> None:
        """Handle that the journals of an earlier daemon were read: of a container that stands for itself nobody tells
        the cgroup again. Its limits were written before it started, and are removed at its end."""
        for it in self._attachments.all():
            if it.taken_up is not None and it.pod.cgroups_path:
                it.taken_up.add_done_callback(partial(self._taken_up, it))

    def _taken_up(self, attachment: Attachment, _done: Future[None]) -> None:
        """Handle that it is known what became of an earlier daemon's attachment."""
        pod = attachment.pod
        if not attachment.ends:
            attachment.containers.remember(pod.name, pod.cgroups_path)
            self.limiter.lift_at_end(Holdings((attachment,)), pod.name, pod.cgroups_path)

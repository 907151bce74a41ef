"""StartContainer: write limits and make the last checks before a container's program runs. Its cgroup exists now."""

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
"""The number of CreateContainer answers without a start in between at which this is logged. The kubelet recreates a
container whose start failed, so more answers may follow."""


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
        """Checks the images of containers; None: images are not checked."""
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
        """Write the rdma limits that the runtime does not write, and check the container's GPUs and image.

        `gpus` returns which GPUs the container shows, `image` where its image is; None: not known. Raise LimitsError if
        a limit cannot be written, ProofError if RDMA had to be proven in the container and was not, and PlacementError
        if a strict request's devices are too far from the GPUs.
        """
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
        """Write the rdma limits of a container of podman or Docker, whose OCI runtime was given no limits. Raise
        LimitsError if a limit cannot be written."""
        holdings = self._attachments.of(pod.sandbox_id)
        if holdings:
            holdings.containers.remember(pod.name, pod.cgroups_path)
            self.limiter.limit_alone(holdings, pod.name, pod.cgroups_path, pod.pid)

    def journals_read(self) -> None:
        """Remember the cgroups of podman's and Docker's containers from the journals of an earlier daemon, because no
        runtime reports them again. Their limits, which the earlier daemon wrote, are removed at their end."""
        for it in self._attachments.all():
            if it.taken_up is not None and it.pod.cgroups_path:
                it.taken_up.add_done_callback(partial(self._taken_up, it))

    def _taken_up(self, attachment: Attachment, _done: Future[None]) -> None:
        """Remember the cgroup of a container of podman or Docker that an earlier daemon had attached devices to. Do
        nothing if the attachment was undone instead of adopted."""
        pod = attachment.pod
        if not attachment.ends:
            attachment.containers.remember(pod.name, pod.cgroups_path)
            self.limiter.lift_at_end(Holdings((attachment,)), pod.name, pod.cgroups_path)

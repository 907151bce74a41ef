"""Checks whether a container's RDMA devices are next to its GPUs. The result is remembered and logged; a strict request
whose devices are too far away is refused."""

from __future__ import annotations

import logging

from nri_rdma.decide.alignment import Alignment, alignment_of, is_strict, refuse_far
from nri_rdma.decide.gpus import of_shown
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.engine.container import Listed, ListedContainer, ShowGpus
from nri_rdma.engine.sandbox import Aligned, Sandboxes
from nri_rdma.engine.specs import SpecCache
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Recorder

log = logging.getLogger(__name__)


class AlignmentCheck:
    """The check of containers' RDMA devices against their GPUs. Thread-safe."""

    def __init__(self, specs: SpecCache, sandboxes: Sandboxes, spans: Recorder) -> None:
        self._specs = specs
        self._sandboxes = sandboxes
        self._spans = spans

    def refuse_far(self, pod: Pod, attached: tuple[AttachedRequest, ...], container: str, gpus: ShowGpus) -> None:
        """Check a container during CreateContainer, but only if one of its requests is strict; all others are checked
        when they start. `gpus` returns which GPUs the container shows. Raise PlacementError if the devices are too
        far."""
        if self._specs.now.gpu_names.gpus and is_strict(attached, container):
            self.check(pod, attached, container, gpus)

    def check(self, pod: Pod, attached: tuple[AttachedRequest, ...], container: str, gpus: ShowGpus) -> None:
        """Check whether the container's devices are next to its GPUs. Raise PlacementError if they are not, and one of
        its requests is strict."""
        alignment = self._alignment(attached, container, gpus)
        if alignment is None:
            return
        with self._spans.span("align", _alignment_words(alignment)):
            aligned = Aligned(pod=str(pod), container=container, alignment=alignment)
            self._note_alignment(pod.sandbox_id, aligned)
            refuse_far(alignment, f"{pod}, container {container}")

    def remember(self, item: Listed, container: ListedContainer, attached: tuple[AttachedRequest, ...]) -> None:
        """Remember the alignment of a container that runs already, and therefore is not refused."""
        alignment = self._alignment(attached, container.name, lambda: container.gpus)
        if alignment is not None and not self._sandboxes.has_ended(item.pod.sandbox_id):
            aligned = Aligned(pod=str(item.pod), container=container.name, alignment=alignment)
            self._note_alignment(item.pod.sandbox_id, aligned)

    def _alignment(self, attached: tuple[AttachedRequest, ...], container: str, gpus: ShowGpus) -> Alignment | None:
        """Return how near the container's devices are to its GPUs; None if it has no devices or no GPUs."""
        now = self._specs.now
        if not now.gpu_names.gpus:
            return None
        return alignment_of(attached, container, of_shown(gpus(), now.gpu_names, now.registry.devices), now.gpu_names)

    def _note_alignment(self, sandbox_id: str, aligned: Aligned) -> None:
        """Remember the container's alignment, and log a bad alignment once."""
        alignments, alignment = self._sandboxes.take(sandbox_id).alignments, aligned.alignment
        is_news = alignments.get(aligned.container) != aligned
        alignments[aligned.container] = aligned
        if is_news and (alignment.is_far or alignment.contradiction):
            log.warning(
                "the container's devices are not next to its GPUs"
                if alignment.is_far
                else "the container has other GPUs than were reported for it",
                extra={
                    "pod": aligned.pod,
                    "container": aligned.container,
                    "alignment": alignment.words,
                    "gpus_from": alignment.source,
                    "contradiction": alignment.contradiction,
                },
            )


def _alignment_words(alignment: Alignment) -> dict[str, str]:
    """Return a span's attributes for the alignment of a container with its GPUs."""
    return {
        "rdma.gpus": ",".join(map(str, alignment.gpus)),
        "rdma.gpus.source": alignment.source,
        "rdma.gpus.problem": alignment.contradiction or alignment.problem,
        "rdma.alignment": alignment.worst.name if alignment.worst is not None else "",
        "rdma.alignment.pairs": "; ".join(map(str, alignment.pairs)),
    }

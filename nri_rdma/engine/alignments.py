"""How near containers turned out to be to their GPUs: told where it is bad, remembered for `status`."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from nri_rdma.decide.alignment import Alignment

log = logging.getLogger(__name__)

_KEPT_PODS = 4096
"""More than any node runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """What `status` says of a container."""

    pod: str
    container: str
    alignment: Alignment


class Alignments:
    """How containers turned out, by sandbox, oldest first. Safe for use by several threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, dict[str, Aligned]] = OrderedDict()

    def tell(self, sandbox_id: str, aligned: Aligned) -> None:
        """The container has this now; the log says so once where it is bad."""
        alignment = aligned.alignment
        if self._put(sandbox_id, aligned) and (alignment.is_far or alignment.contradiction):
            log.warning(
                "the container's devices are not next to its GPUs" if alignment.is_far else "the GPUs are others",
                extra={
                    "pod": aligned.pod,
                    "container": aligned.container,
                    "alignment": alignment.words,
                    "gpus_from": alignment.source,
                    "contradiction": alignment.contradiction,
                },
            )

    def forget(self, sandbox_id: str) -> None:
        """The sandbox has ended."""
        self._known.pop(sandbox_id, None)

    def keep(self, sandbox_ids: Collection[str]) -> None:
        """Forget all other sandboxes: they have ended unseen."""
        for sandbox_id in self._known.copy():
            if sandbox_id not in sandbox_ids:
                self.forget(sandbox_id)

    def all(self) -> tuple[Aligned, ...]:
        """Those of all sandboxes."""
        return tuple(item for containers in self._known.copy().values() for item in containers.copy().values())

    def _put(self, sandbox_id: str, aligned: Aligned) -> bool:
        """Whether that is news."""
        containers = self._known.setdefault(sandbox_id, {})
        is_news = containers.get(aligned.container) != aligned
        containers[aligned.container] = aligned
        while len(self._known) > _KEPT_PODS:
            self._known.popitem(last=False)
        return is_news

"""The types that the state machine shares with the classes that carry out its actions (Effect)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from nri_rdma.attach.attachment import Attachment, Now, unchanged
from nri_rdma.attach.states import Effect, Event

Handler = Callable[[Attachment, BaseException | None], None]
"""Carries out one effect, an action that follows a state transition, for an attachment. The error, if there is one, is
passed on to those who wait for the attachment."""

Handlers = Mapping[Effect, Handler]


class Feed(Protocol):
    """Feeds an event to an attachment's state machine, and carries out the resulting actions (Effect) in the calling
    thread."""

    def __call__(
        self,
        attachment: Attachment,
        event: Event,
        error: BaseException | None = None,
        change: Callable[[Now], Now] = unchanged,
    ) -> None: ...

"""The handlers that replace a daemon that could not be created. They are for a runtime that exits if a plugin answers
Configure with an error.

Fail closed: a pod that asks for devices is refused, with the reason why there is no daemon. Everything else is answered
as if there were no plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nri_rdma.doors.nri.messages import EVENTS, event_mask
from nri_rdma.doors.nri.plugin import UnknownMethodError
from nri_rdma.errors import NriRdmaError
from nri_rdma.pb import nri_pb2 as pb
from nri_rdma.ttrpc.wire import Request

_EMPTY = b""


class Refusing:
    """A plugin that refuses pods and containers with `error`. `asks` returns for a pod's annotations whether the pod
    asks for devices; all other pods start normally."""

    def __init__(self, error: NriRdmaError, asks: Callable[[Mapping[str, str]], bool]) -> None:
        self._error = error
        self._asks = asks
        self._methods: dict[str, Callable[[bytes], bytes]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "RunPodSandbox": lambda payload: self._refuse(pb.RunPodSandboxRequest.FromString(payload).pod.annotations),
            "CreateContainer": lambda payload: self._refuse(
                pb.CreateContainerRequest.FromString(payload).pod.annotations
            ),
            "StateChange": self._state_change,
            "Shutdown": lambda _payload: _EMPTY,
        }

    def answer(self, request: Request) -> bytes:
        """Return the payload of the answer. Raises the error given at creation if the pod asks for devices, and
        UnknownMethodError for a method that is not served."""
        handler = self._methods.get(request.method)
        if handler is None:
            raise UnknownMethodError(request.method)
        return handler(request.payload)

    def _configure(self, _payload: bytes) -> bytes:
        answer: bytes = pb.ConfigureResponse(events=event_mask(self._methods)).SerializeToString()
        return answer

    def _synchronize(self, payload: bytes) -> bytes:
        more = pb.SynchronizeRequest.FromString(payload).more
        answer: bytes = pb.SynchronizeResponse(more=more).SerializeToString()
        return answer

    def _state_change(self, payload: bytes) -> bytes:
        change = pb.StateChangeEvent.FromString(payload)
        return self._refuse(change.pod.annotations) if EVENTS.get(change.event) == "RunPodSandbox" else _EMPTY

    def _refuse(self, annotations: Mapping[str, str]) -> bytes:
        if self._asks(annotations):
            raise self._error
        return _EMPTY

"""The handlers of the runtime's calls.

A handler decodes the message, calls the engine and encodes the answer. A pod that asks for nothing costs a decode, a
lookup and an empty reply, and leaves no span. The error of a handler becomes the text of the CRI error.

A handler that cannot finish in time answers with an error before its deadline. After a late answer the runtime drops
the plugin, and a runtime before NRI 0.12.4 lets the pod start without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol  # Any: generated messages

from nri_rdma.doors.nri.messages import (
    EVENTS,
    asker_from,
    cdi_devices,
    container_name,
    create_response,
    device_numbers,
    env_names,
    event_mask,
    is_privileged,
    made_from,
    pod_from,
    shown_gpus,
)
from nri_rdma.doors.nri.nri_container import NriContainer
from nri_rdma.doors.nri.runtimes import Abilities, abilities_of
from nri_rdma.engine.container import Container, FindImage, Listed, ListedContainer, ShowGpus, Start
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.observe.spans import Recorder, Span
from nri_rdma.pb import nri_pb2 as pb
from nri_rdma.text.share_annotations import forged, shares_in
from nri_rdma.ttrpc.wire import Request
from nri_rdma.wire.error import WireError

DEFAULT_REQUEST_TIMEOUT_S = 2.0
"""NRI's default, for runtimes before NRI 0.7, which send 0."""

LONGEST_TIMEOUT_S = 60.0
"""Upper bound of a handler's time, even if the runtime allows more, because the runtime sends no other event
meanwhile."""
MAX_LISTED = 20_000
"""Maximum number of pods and containers in Synchronize; no node runs as many. With more, the session ends."""

_MARGIN_S = 0.2
_MARGIN_SHARE = 0.25
"""How much of a handler's time is kept for sending the answer: _MARGIN_S, or _MARGIN_SHARE of the time if that is
less."""

_FAILURE_POLICY = pb.FailurePolicy(fail_request=True)
"""The policy for calls that we do not answer in time: the call fails, and the runtime drops us. A runtime before NRI
0.12.4 ignores the policy and goes on without us.

We ask to be dropped, because a plugin that hangs and is kept would delay and fail every start of a pod, and would fail
every stop for ever (docs/adr/0049).
"""

_EMPTY = b""


@dataclass(slots=True)
class RuntimeFacts:
    """The description of itself that the runtime sends in Configure."""

    name: str = ""
    version: str = ""
    abilities: Abilities = field(default_factory=Abilities)
    request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S


class Refusals(Protocol):
    """The object that removes what a runtime leaves behind of sandboxes that we refused. No method blocks or raises."""

    def refused(self, pod: Pod) -> None:
        """Note that this sandbox was refused and that the runtime will leave parts of it behind."""

    def listed(self, sandbox_ids: Collection[str]) -> None:
        """Note the sandboxes that the runtime has just listed in Synchronize."""


class PodEngine(Protocol):
    """The part of the engine that the NRI door uses. It is implemented by nri_rdma.engine.engine.Engine, or by a
    wrapper around it."""

    def may_ask(self, annotations: Mapping[str, str], pod_uid: str) -> bool: ...
    def knows(self, sandbox_id: str) -> bool: ...
    def remembers(self, sandbox_id: str) -> bool: ...
    def concerns(self, container: Container) -> bool: ...
    def start_of(self, pod: Pod, annotations: Mapping[str, str], asker: Asker) -> Start: ...
    def run_pod(self, start: Start, deadline: float) -> None: ...
    def create_container(self, container: Container, deadline: float) -> ContainerEdits: ...
    def container_created(self, sandbox_id: str, container: str, cgroups_path: str) -> None: ...
    def leaves_limits(self, cgroups_path: str, container_id: str, sandbox_id: str) -> bool: ...
    def start_container(
        self,
        sandbox_id: str,
        container: str,
        cgroups_path: str,
        gpus: ShowGpus | None = None,
        container_id: str = "",
        image: FindImage | None = None,
    ) -> None: ...
    def stop_pod(self, sandbox_id: str, deadline: float) -> None: ...
    def forget(self, sandbox_id: str) -> None: ...
    def synchronize(self, pods: Collection[Listed]) -> object: ...


HandleChange = Callable[[Any, Request], bytes]
"""The handler of an event that may come as its own RPC or as a StateChange. It gets the decoded message, which has the
fields `pod` and `container` in either case, and the request."""


class UnknownMethodError(Exception):
    """The runtime called a method that this plugin does not serve."""


class Plugin:
    """The handlers of one connection. For each connection a new Plugin is made."""

    def __init__(
        self,
        engine: PodEngine,
        spans: Recorder,
        on_synchronized: Callable[[RuntimeFacts], None],
        on_configured: Callable[[RuntimeFacts], None] = lambda _runtime: None,
        refusals: Refusals | None = None,
    ) -> None:
        """`on_configured` is called with the runtime's description before Configure is answered. `on_synchronized` is
        called with it after the runtime has listed its pods."""
        self._engine = engine
        self._spans = spans
        self._on_configured = on_configured
        self._on_synchronized = on_synchronized
        self._refusals = refusals
        self._collected_pods: list[Any] = []
        self._collected = 0
        self._collected_containers: dict[str, list[ListedContainer]] = {}
        self.runtime = RuntimeFacts()
        self.event = ""
        """The name of the event in the last call; "" for a call that the plugin does not serve."""
        self.concerned = False
        """Whether the last call was about a pod that asks for devices, or about the connection."""
        self._whole_rdma_max = True
        self._changes: dict[str, HandleChange] = {
            "RunPodSandbox": self._run_pod,
            "StartContainer": self._start,
            "StopPodSandbox": partial(self._end_pod, "StopPodSandbox"),
            "RemovePodSandbox": partial(self._end_pod, "RemovePodSandbox"),
        }
        self._methods: dict[str, Callable[[Request], bytes]] = {
            **{
                name: partial(_own_rpc, getattr(pb, f"{name}Request"), handle) for name, handle in self._changes.items()
            },
            "CreateContainer": self._create_container,
            "StateChange": self._state_change,
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "Shutdown": lambda _request: _EMPTY,
        }

    def answer(self, request: Request) -> bytes:
        """Return the payload of the answer to a call.

        Raises NriRdmaError, UnknownMethodError or DecodeError if the call fails, and WireError if the session must end.
        Any other exception is a bug of ours.
        """
        self.event, self.concerned = "", False
        handler = self._methods.get(request.method)
        if handler is None:
            raise UnknownMethodError(request.method)
        self.event = request.method
        return handler(request)

    # -- the walk of a pod -------------------------------------------------------------------------------------------

    def _state_change(self, request: Request) -> bytes:
        """Handle an event from a runtime before NRI 0.12, which sends all events except CreateContainer as a
        StateChange. Unknown events are ignored."""
        change = pb.StateChangeEvent.FromString(request.payload)
        self.event = EVENTS.get(change.event, self.event)
        handle = self._changes.get(self.event)
        return handle(change, request) if handle is not None else _EMPTY

    def _run_pod(self, message: Any, request: Request) -> bytes:
        annotations = message.pod.annotations
        if not self._engine.may_ask(annotations, message.pod.uid):
            return _EMPTY
        pod = pod_from(message.pod)
        with self._event("RunPodSandbox", message.pod, request):
            try:
                start = self._engine.start_of(pod, annotations, asker_from(message.pod, pod))
                self._engine.run_pod(start, self._deadline(request))
            except Exception:  # the session turns every error into a refusal
                if self._refusals is not None and self.runtime.abilities.leaves_refused:
                    self._refusals.refused(pod)
                raise
        return _EMPTY

    def _create_container(self, request: Request) -> bytes:
        payload = request.payload
        message = pb.CreateContainerRequest.FromString(payload)
        container = NriContainer(message, payload)
        if not self._engine.concerns(container):
            return _EMPTY
        with self._event("CreateContainer", message.pod, request) as span:
            span.attributes["k8s.container.name"] = container.name
            edits = self._engine.create_container(container, self._deadline(request))
            if edits.rdma_max and not self._engine.leaves_limits(
                container.cgroups_path, message.container.id, container.sandbox_id
            ):
                edits = replace(edits, rdma_max=())
            answer: bytes = create_response(edits, whole_rdma_max=self._whole_rdma_max).SerializeToString()
            self._engine.container_created(container.sandbox_id, container.name, container.cgroups_path)
        return answer

    def _start(self, message: Any, request: Request) -> bytes:
        """Handle StartContainer. The runtime holds the container's process until the answer, and an error fails the
        start."""
        pod, container = message.pod, message.container
        if not self._engine.knows(pod.id):
            return _EMPTY
        with self._event("StartContainer", pod, request) as span:
            name = container_name(container)
            span.attributes["k8s.container.name"] = name
            gpus = partial(shown_gpus, container)
            image = partial(made_from, container)
            self._engine.start_container(pod.id, name, container.linux.cgroups_path, gpus, container.id, image)
        return _EMPTY

    def _end_pod(self, event: str, message: Any, request: Request) -> bytes:
        """Handle StopPodSandbox and RemovePodSandbox. They never fail, because CRI-O would repeat a failed stop for
        ever."""
        # Asked before forget(), so that a pod that failed, or runs without its devices, gets a span, too.
        is_remembered = self._engine.remembers(message.pod.id)
        self._engine.forget(message.pod.id)
        if is_remembered:
            with self._event(event, message.pod, request):
                self._engine.stop_pod(message.pod.id, self._deadline(request))
        return _EMPTY

    # -- the life of a connection ------------------------------------------------------------------------------------

    def _configure(self, request: Request) -> bytes:
        self.concerned = True
        message = pb.ConfigureRequest.FromString(request.payload)
        self.runtime = runtime_facts(message)
        self._whole_rdma_max = not self.runtime.abilities.heeds_start
        self._on_configured(self.runtime)
        events = event_mask(self._methods) & self.runtime.abilities.events  # never 0, which means all events
        answer: bytes = pb.ConfigureResponse(events=events, failure_policy=_FAILURE_POLICY).SerializeToString()
        return answer

    def _synchronize(self, request: Request) -> bytes:
        """Collect the pods that the runtime lists, and answer at once. The list may come in several messages. After the
        last one, a worker compares it with our records and repairs what differs."""
        self.concerned = True
        message = pb.SynchronizeRequest.FromString(request.payload)
        self._collected += len(message.pods) + len(message.containers)
        if self._collected > MAX_LISTED:
            raise WireError(f"the runtime lists more than {MAX_LISTED} pods and containers")
        self._collected_pods.extend(message.pods)
        for container in message.containers:
            self._collected_containers.setdefault(container.pod_sandbox_id, []).append(listed_container(container))
        if message.more:
            more: bytes = pb.SynchronizeResponse(more=True).SerializeToString()
            return more
        self._collected = 0
        pods, self._collected_pods = self._collected_pods, []
        containers, self._collected_containers = self._collected_containers, {}
        if self._refusals is not None:
            self._refusals.listed({pod.id for pod in pods})
        self._engine.synchronize(tuple(listed_pod(pod, tuple(containers.get(pod.id, ()))) for pod in pods))
        self._on_synchronized(self.runtime)
        return _EMPTY

    # -- below -------------------------------------------------------------------------------------------------------

    def _event(self, name: str, pod: Any, request: Request) -> Span:
        self.concerned = True
        if not self._spans.enabled:
            return self._spans.span(name)
        return self._spans.span(
            name,
            {"k8s.pod.name": f"{pod.namespace}/{pod.name}", "k8s.pod.uid": pod.uid, "sandbox": pod.id},
            traceparent=request.metadata_value("traceparent"),
        )

    def _deadline(self, request: Request) -> float:
        return answer_by(request, self.runtime.request_timeout_s)


def _own_rpc(message: Any, handle: HandleChange, request: Request) -> bytes:
    return handle(message.FromString(request.payload), request)


def answer_by(request: Request, budget_s: float) -> float:
    """Return when an answer must be sent, in seconds of `time.monotonic`.

    The time left is the smaller of the request's own timeout and `budget_s`, less a margin for sending.
    """
    if request.timeout_ns > 0:
        budget_s = min(budget_s, request.timeout_ns / 1e9)
    budget_s = min(budget_s, LONGEST_TIMEOUT_S)
    return time.monotonic() + budget_s - min(_MARGIN_S, budget_s * _MARGIN_SHARE)


def runtime_facts(message: Any) -> RuntimeFacts:
    """Return the runtime's description of itself in a ConfigureRequest."""
    return RuntimeFacts(
        name=message.runtime_name,
        version=message.runtime_version,
        abilities=abilities_in(message),
        request_timeout_s=message.request_timeout / 1000 or DEFAULT_REQUEST_TIMEOUT_S,
    )


def abilities_in(message: Any) -> Abilities:
    """Return the abilities of the runtime that sent a ConfigureRequest."""
    return abilities_of(
        message.runtime_name,
        message.runtime_version,
        message.NRI_version,
        tells_timeouts=message.request_timeout > 0,
    )


def listed_pod(message: Any, containers: tuple[ListedContainer, ...]) -> Listed:
    """Return a pod that the runtime lists in Synchronize, with its containers. `message` is the PodSandbox message."""
    pod = pod_from(message)
    if forged(message.annotations):  # its containers' annotations about shares are forged, too
        containers = tuple(replace(it, shares=frozenset()) for it in containers)
    return Listed(pod=pod, annotations=dict(message.annotations), containers=containers, asker=asker_from(message, pod))


def listed_container(container: Any) -> ListedContainer:
    """Return a container that the runtime lists in Synchronize. `container` is the Container message."""
    return ListedContainer(
        name=container_name(container),
        devices=device_numbers(container),
        cgroups_path=container.linux.cgroups_path,
        cdi_devices=cdi_devices(container),
        is_privileged=is_privileged(container),
        env=env_names(container),
        gpus=shown_gpus(container),
        shares=shares_in(container.annotations),
        has_run=container.state != pb.CONTAINER_CREATED,
    )

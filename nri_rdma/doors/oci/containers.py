"""Attaches devices to containers of podman and Docker whose OCI hook asks for them, and returns the devices when the
container ends.

The engine treats such a container as a pod: the container's id is the sandbox id, and the end of its first process is
the end of the pod. Law: the answer is either a yes, and then the container has everything it asks for, or an error, and
then nothing stays attached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.port import ProcessIdentity
from nri_rdma.decide.inject import LATE_VARIABLES
from nri_rdma.doors.oci.questions import Given, HookQuestion, Prepared, annotation_of, holding, memlock_of
from nri_rdma.engine.container import KnownContainer
from nri_rdma.engine.engine import Engine
from nri_rdma.errors import AttachError, ErrorCode, NotReadyError, NriRdmaError, PlacementError, RequestError
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import settled

NAMESPACE = "oci"
"""The Kubernetes namespace that rules see for containers of podman and Docker."""
ATTACH_S = 8.0
"""How long a container waits for its attach, in seconds."""
ANSWER_S = 9.5
"""How long a container waits until it is refused after a failed attach, in seconds. The hook waits half a second longer
(its ATTACH_S), and then tells its user nothing of the reason."""
RETURN_S = 5.0
"""How long the end of a container waits until its devices are returned to the host. If the return takes longer, it goes
on in the background."""
SHORT = 12
"""Length of a container id as podman and Docker show it."""


class Handed(Protocol):
    """The network namespaces that were received as descriptors, by path (nri_rdma.host.netlink.namespaces.handed).
    `hand` adds one, and `withdraw` removes it."""

    def hand(self, path: str, fd: int) -> None: ...

    def withdraw(self, path: str) -> None: ...


class Containers:
    """Answers the questions of OCI hooks. All methods block and may be called from any thread, but only one at a time
    for each container."""

    def __init__(
        self,
        engine: Engine,
        handed: Handed,
        interface_of: Callable[[int], str],
        start_of: Callable[[int], int],
        spans: Recorder,
        default: Given,
        proof_s: float,
    ) -> None:
        """`handed` keeps the network namespaces that hooks send as descriptors. `interface_of` returns the name of the
        main interface in a network namespace (nri_rdma.attach.survey.pod_interface). `start_of` returns the start time
        of a process in ticks since the boot, and raises ProcessLookupError.

        `default` is the answer for a container that asks for no RLIMIT_MEMLOCK. `proof_s` is the longest duration in
        seconds of a proof, a test that RDMA works in the container.
        """
        self._engine = engine
        self._handed = handed
        self._interface_of = interface_of
        self._start_of = start_of
        self._spans = spans
        self._default = default
        self._proof_s = proof_s

    def prepare(self, question: HookQuestion, namespace: int | None = None) -> Prepared:
        """Choose devices for a container that is about to be created, reserve them briefly, and return the device nodes
        and variables to create it with.

        `namespace` is a descriptor of its network namespace; None: the namespace does not exist yet. Raises
        NriRdmaError if the request is refused; then nothing stays reserved.
        """
        pod = self._pod(question)
        with self._spans.span("precreate", _attributes(pod)) as span:
            try:
                return self._prepare(question, pod, namespace)
            except NriRdmaError as error:
                span.error = str(error)
                if not error.is_logged:
                    self._engine.refused.note("precreate", pod, error)
                raise _for_containers(error, pod) from error

    def attach(self, question: HookQuestion, namespace: int) -> Given:
        """Attach the devices that a created container asks for, and return the answer for its hook. Calling it again
        changes nothing.

        `namespace` is a descriptor of its network namespace. Raises NriRdmaError if the request is refused; after any
        exception nothing stays attached.
        """
        pod, begun = self._pod(question), time.monotonic()
        with self._spans.span("createRuntime", _attributes(pod)) as span:
            try:
                return self._attach(question, pod, namespace)
            except Exception as error:
                span.error = str(error)
                self._engine.stop_pod(pod.sandbox_id, min(time.monotonic() + RETURN_S, begun + ANSWER_S))
                if not isinstance(error, NriRdmaError):
                    raise
                if not error.is_logged:
                    self._engine.refused.note("createRuntime", pod, error)
                raise _for_containers(error, pod) from error

    def give_back(self, question: HookQuestion) -> Given:
        """Return the container's devices to the host, if it has any."""
        pod = self._pod(question)
        with self._spans.span("poststop", _attributes(pod)):
            self._engine.stop_pod(pod.sandbox_id, time.monotonic() + RETURN_S)
        return Given()

    # -- below -------------------------------------------------------------------------------------------------------

    def _pod(self, question: HookQuestion) -> Pod:
        """Return the pod that stands for the container. Raises NriRdmaError if the id belongs to a pod sandbox of the
        container runtime."""
        pod = _pod(question)
        if any(it.pod.is_listed for it in self._engine.attachments.of(pod.sandbox_id)):
            what = "a hook asks with the id of a pod's sandbox, which the container runtime serves"
            hint = "see who calls the hook: containers of podman and Docker have ids of their own"
            raise NriRdmaError(ErrorCode.OCI_STATE, what, where=pod.sandbox_id, hint=hint)
        return pod

    def _prepare(self, question: HookQuestion, pod: Pod, namespace: int | None) -> Prepared:
        deadline = time.monotonic() + ATTACH_S
        self._refuse_unclear(question, pod)
        undo = self._engine.attachments.end(pod.sandbox_id)
        if undo is not None:  # an earlier start, whose end was not reported
            _await(undo, pod, deadline)
        container = _container(question, pod, question.annotations, is_made=False)
        own = (self._interface_of(namespace) or None) if namespace is not None else None
        edits = self._engine.promise(container, question.links, own, deadline)
        return Prepared(nodes=edits.char_devices, env=edits.env)

    def _refuse_unclear(self, question: HookQuestion, pod: Pod) -> None:
        """Raise RequestError if the hook reads annotations with another prefix than the daemon's, or if the container
        asks both by annotation and by CDI device. All devices of a container must come from one request."""
        prefix = self._engine.prefix
        if not self._engine.asks(question.annotations):
            what = f"the hook reads annotations of another prefix than {prefix}, the daemon's"
            hint = "write the hooks again with the daemon's annotation_prefix: nri-rdma install podman, or docker"
            raise RequestError(ErrorCode.SETTING, what, where=str(pod), hint=hint)
        if question.wishes:
            what = "this container asks for RDMA devices by --device and by an annotation"
            hint = f"ask in one way: {prefix}/pod may name several devices"
            raise RequestError(ErrorCode.ANNOTATION_PLACE, what, where=str(pod), hint=hint)

    def _attach(self, question: HookQuestion, pod: Pod, namespace: int) -> Given:
        deadline = time.monotonic() + ATTACH_S
        process = ProcessIdentity(pid=pod.pid, start=self._started(pod))
        self._end_earlier(pod, process, deadline)
        container = _container(question, pod, self._annotations(question, pod), is_made=True)
        self._handed.hand(pod.netns_path, namespace)
        try:
            self._engine.run_pod(self._engine.start_of(pod, container.annotations, container.asker), deadline)
            for it in self._engine.attachments.of(pod.sandbox_id):
                _await(it.attach_done, pod, deadline)
            edits = self._engine.create_container(container, deadline)
        finally:
            self._handed.withdraw(pod.netns_path)
        _refuse_lacking(question, edits, pod)
        if question.annotations:
            _refuse_other_variables(question, edits, pod)
        self._engine.starts.start_alone(pod)
        if self._started(pod) != process.start:
            raise _ended(pod)
        if not self._engine.knows(pod.sandbox_id):
            return Given()  # the annotation asks for no devices
        asked = memlock_of(question.wishes) if question.wishes else edits.memlock
        given = self._default if asked is None else Given(memlock=asked, must=True)
        return self._proven(question, pod, given, deadline)

    def _proven(self, question: HookQuestion, pod: Pod, given: Given, deadline: float) -> Given:
        """Check the container's image, test that RDMA works in it if its request has `prove`, and return the answer for
        the hook.

        `given` is the answer so far. After a test, the hook must set the RLIMIT_MEMLOCK with which the test ran. A
        container with several devices has several hooks, but is tested once. Raises NriRdmaError if the check or the
        test fails.
        """
        gate, parts = self._engine.starts.gate, self._engine.attachments.of(pod.sandbox_id)
        within_s = max(0.0, min(self._proof_s, deadline - time.monotonic()))
        memlock = holding(question, given.memlock)
        gate.prove_alone(parts, pod, memlock, question.indexes, question.bundle, within_s)
        return replace(given, must=given.memlock is not None) if gate.asks(parts, pod.name) else given

    def _annotations(self, question: HookQuestion, pod: Pod) -> Mapping[str, str]:
        """Return the container's request in the form of a pod's annotations. Wishes by CDI device are converted to that
        form."""
        if question.annotations:
            self._refuse_unclear(question, pod)
            return question.annotations
        homes = {it.name: self._engine.offering.offer.home_of(it) for it in self._engine.node.current.devices}
        return {f"{self._engine.prefix}/pod": annotation_of(question.wishes, homes)}

    def _started(self, pod: Pod) -> int:
        """Return the start time of the container's first process. Raises PlacementError if the process has ended or
        cannot be seen."""
        try:
            return self._start_of(pod.pid)
        except OSError as error:
            raise _ended(pod) from error

    def _end_earlier(self, pod: Pod, process: ProcessIdentity, deadline: float) -> None:
        """Return the devices of an earlier start of the container to the host, if the end of that start was not
        reported. `process` is the container's present first process."""
        parts = self._engine.attachments.of(pod.sandbox_id)
        if all(_is_of(it, process) and not it.now.ends for it in parts):
            return
        undo = self._engine.attachments.end(pod.sandbox_id)
        if undo is not None:
            _await(undo, pod, deadline)


def _pod(question: HookQuestion) -> Pod:
    return Pod(
        sandbox_id=question.container_id,
        uid=question.container_id,
        name=question.container_id[:SHORT],
        namespace=NAMESPACE,
        netns_path=f"/proc/{question.pid}/ns/net" if question.has_network else "",
        pid=question.pid,
        is_listed=False,
        cgroups_path=question.cgroups_path,
    )


def _container(question: HookQuestion, pod: Pod, annotations: Mapping[str, str], *, is_made: bool) -> KnownContainer:
    """Return the container in the form that the engine takes.

    `is_made`: it is already created. Then its device nodes are left out here, and `_refuse_lacking` compares them
    later.
    """
    return KnownContainer(
        pod=pod,
        name=pod.name,
        annotations=annotations,
        asker=Asker(namespace=NAMESPACE),
        env=question.variables,
        devices={} if is_made else question.nodes,
    )


def _attributes(pod: Pod) -> dict[str, str]:
    return {"k8s.pod.name": str(pod), "k8s.pod.uid": pod.uid, "sandbox": pod.sandbox_id}


def _is_of(attachment: Attachment, process: ProcessIdentity) -> bool:
    """Return whether the attachment was made for this process, and not for an earlier start of the container."""
    record = attachment.now.record
    known = record.process if record is not None else None
    return attachment.pod.pid == process.pid and known in {None, process}


def _await(done: Future[None], pod: Pod, deadline: float) -> None:
    """Wait until the future is done, and ignore its error. Raises NotReadyError at the deadline."""
    if not settled(done, deadline - time.monotonic()):
        what = f"the devices of this container were not attached within {ATTACH_S:g} s"
        raise NotReadyError(ErrorCode.NOT_READY, what, where=str(pod), hint="start the container again")


def _refuse_lacking(question: HookQuestion, edits: ContainerEdits, pod: Pod) -> None:
    """Raise PlacementError if the created container lacks a device node, or has it with another number. A node cannot
    be added any more."""
    for node in edits.char_devices:
        has = question.nodes.get(node.path)
        if has != (node.major, node.minor):
            shown = f"{has[0]}:{has[1]}" if has is not None else "no node"
            raise PlacementError(
                ErrorCode.PATH_CONFLICT,
                f"the container was made with {shown} at {node.path}, which is {node.major}:{node.minor}",
                where=str(pod),
                hint="write the CDI spec anew (`nri-rdma cdi generate --hooks`); with `rdma system` at netns exclusive"
                " a device gets another node when it moves: set netns shared",
            )


def _refuse_other_variables(question: HookQuestion, edits: ContainerEdits, pod: Pod) -> None:
    """Raise PlacementError if the created container's environment variables name other devices than it has. Variables
    cannot be changed any more."""
    # With some engines the interface and its GIDs are unknown when the container is created.
    env = [(name, value) for name, value in edits.env if name in question.prepared or name not in LATE_VARIABLES]
    if dict(env) == dict(question.prepared):
        return
    differing = {name for name, _ in {*env} ^ {*question.prepared.items()}}
    raise PlacementError(
        ErrorCode.NAME_CONFLICT,
        f"the container was made with other devices or names than it has now: {', '.join(sorted(differing))}",
        where=str(pod),
        hint="start the container again; where containers share a network, name the netdev (interface: {name: ...})",
    )


def _ended(pod: Pod) -> PlacementError:
    return PlacementError(
        ErrorCode.NO_NETWORK_NAMESPACE,
        f"the container's process {pod.pid} has ended, or the daemon does not see it",
        where=str(pod),
        hint="if the daemon runs in a container, give it the host's PID namespace; otherwise start the container again",
    )


def _for_containers(error: NriRdmaError, pod: Pod) -> NriRdmaError:
    """Return the error with a hint for a user of podman or Docker, where no kubelet tries again."""
    if error.code is ErrorCode.HOST_NETWORK:
        what = "this container is on the host's network: a netdev cannot be moved into it"
        hint = "take --network host away, or ask for mode shared (annotation, or `cdi generate --mode shared`)"
        error = PlacementError(ErrorCode.HOST_NETWORK, what, where=str(pod), hint=hint)
        error.is_logged = True
    if isinstance(error, NotReadyError | AttachError):
        error.hint = "start the container again; `nri-rdma status` and the daemon's log say more"
    return error

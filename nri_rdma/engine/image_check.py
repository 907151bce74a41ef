"""Checks, before a container's program starts, whether the libraries in its image can use its RDMA devices. Problems
are logged and remembered for `status`.

The guard's hook asks for the check and waits a short time for it; it usually takes milliseconds. If no hook asks, the
image is checked while the runtime starts the container, and nothing waits for the result. Images have reader threads of
their own, because an image may be slow: some runtimes fetch its files when they are first read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Protocol

from nri_rdma.attach.holdings import Holdings
from nri_rdma.decide.userspace import checked_devices, kernel_device, problems_of, providers_of
from nri_rdma.engine.container import FindImage
from nri_rdma.engine.gate import Created
from nri_rdma.engine.sandbox import ImageChecked, Sandboxes
from nri_rdma.errors import ErrorCode, NriRdmaError, ProofError, UserspaceError
from nri_rdma.model.userspace import Made, Userspace
from nri_rdma.observe.spans import Recorder, Span, current_span, under
from nri_rdma.tasks.waiting import settled
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)


class ReadsImages(Protocol):
    """Reads the images of containers, and the kernel's interface versions of their devices. Blocks on files."""

    machine: str
    """The node's architecture."""

    def read(self, made: Made, providers: Collection[str]) -> Userspace:
        """Return the RDMA libraries in a container's image, among them these providers (drivers of libibverbs). Never
        raises: the result says what could not be read."""

    def abi(self, uverbs: str) -> int | None:
        """Return the version of the kernel's interface to a device (`uverbs`: the name of its device node, for example
        uverbs0); None if it is not known."""


class ImageCheck:
    """Checks containers' images in reader threads and remembers the results. Thread-safe."""

    def __init__(self, images: ReadsImages, sandboxes: Sandboxes, spans: Recorder, readers: Workers) -> None:
        self._images = images
        self._sandboxes = sandboxes
        self._spans = spans
        self.readers = readers
        self._lock = Lock()
        self.running: dict[tuple[str, str, str], Future[None]] = {}
        """The unfinished checks by sandbox id, container name and container id, so that a slow check is begun once."""

    def begin(self, holdings: Holdings, container: str, container_id: str, image: FindImage) -> Future[None] | None:
        """Begin the check of a container that was created and does not run yet; return a future that is done with the
        check. If the check runs already, return its future. Return None if the check was done before, or if the
        container has no devices to check."""
        if not concerns(holdings, container):
            return None
        pod = holdings.pod
        if self._checked(pod.sandbox_id, container, container_id) is not None:
            return None
        key = (pod.sandbox_id, container, container_id)
        with self._lock:
            running = self.running.get(key)
            if running is not None and not running.done():
                return running
            work = partial(self._check, holdings, container, container_id, image(), current_span())
            begun = self.running[key] = self.readers.submit(f"image {pod.sandbox_id}", work)
        begun.add_done_callback(partial(_log_bug, f"{pod}, container {container}"))
        begun.add_done_callback(partial(self._forget, key))
        return begun

    def await_check(self, holdings: Holdings, created: Created, within_s: float) -> bool:
        """Begin the check of a container's image and wait for it at most `within_s` seconds; return whether it is done.
        Called when the guard, an OCI hook, asks whether the container may start."""
        begun = self._begin_created(holdings, created)
        return begun is None or settled(begun, within_s)

    def refusal(self, holdings: Holdings, created: Created, within_s: float) -> NriRdmaError | None:
        """Return the error that refuses a container in which RDMA has to be tested before it starts; None if nothing is
        wrong. The errors: its image was not read within `within_s` seconds, the check failed, or the image lacks a
        library that its RDMA devices need."""
        begun = self._begin_created(holdings, created)
        if begun is not None and (not settled(begun, within_s) or begun.cancelled()):
            what = f"the files of its image were not read within {within_s:g} s"
            return ProofError(ErrorCode.PROOF_LATE, what, where=created.where, hint="nothing to do: it is tried again")
        if begun is not None and begun.exception() is not None:
            what, hint = "the check of its image failed inside the daemon", "report this with the daemon's log"
            return NriRdmaError(ErrorCode.INTERNAL, what, where=created.where, hint=hint)
        return next(iter(self.problems(holdings.pod.sandbox_id, created.name, created.container_id)), None)

    def problems(self, sandbox_id: str, container: str, container_id: str) -> tuple[UserspaceError, ...]:
        """Return the reasons why the programs in a container's image cannot use its devices; empty if there are none or
        the image was not checked."""
        checked = self._checked(sandbox_id, container, container_id)
        return checked.problems if checked is not None else ()

    def _begin_created(self, holdings: Holdings, created: Created) -> Future[None] | None:
        """Begin the check of a created container's image; return a future that is done with the check. Return None if
        there is nothing to check, or if the OCI hook did not report the container's process and bundle."""
        if not (created.pid and created.bundle):
            return None  # the hook is of an older release
        image = partial(Made, container_id=created.container_id, pid=created.pid, bundle=created.bundle)
        return self.begin(holdings, created.name, created.container_id, image)

    def _forget(self, key: tuple[str, str, str], done: Future[None]) -> None:
        with self._lock:
            if self.running.get(key) is done:
                del self.running[key]

    def _checked(self, sandbox_id: str, container: str, container_id: str) -> ImageChecked | None:
        known = self._sandboxes.get(sandbox_id)
        checked = known.images.get(container) if known is not None else None
        return checked if checked is not None and checked.container_id == container_id else None

    def _check(self, holdings: Holdings, container: str, container_id: str, made: Made, caller: Span | None) -> None:
        pod, images = holdings.pod, self._images
        attributes = {"k8s.pod.name": str(pod), "k8s.container.name": container, "sandbox": pod.sandbox_id}
        with under(caller), self._spans.span("userspace", attributes) as span:
            given = checked_devices(holdings.attached, container)
            devices = tuple(kernel_device(it, images.abi) for it in given)
            userspace = images.read(made, providers_of(devices))
            problems = problems_of(userspace, devices, f"{pod}, container {container}", images.machine)
            span.attributes["rdma.userspace.libibverbs"] = userspace.path
            span.attributes["rdma.userspace.problem"] = "; ".join(map(str, problems)) or userspace.unseen
        checked = ImageChecked(
            pod=str(pod), container=container, container_id=container_id, problems=problems, unseen=userspace.unseen
        )
        self._note(pod.sandbox_id, checked)

    def _note(self, sandbox_id: str, checked: ImageChecked) -> None:
        """Remember the result of a check for `status`; log a container's problems once."""
        if self._sandboxes.is_over(sandbox_id):
            return
        images = self._sandboxes.take(sandbox_id).images
        earlier, images[checked.container] = images.get(checked.container), checked
        said = [str(it) for it in checked.problems]
        if said and (earlier is None or [str(it) for it in earlier.problems] != said):
            log.warning(
                "the libraries in a container's image cannot use its RDMA devices",
                extra={"pod": checked.pod, "container": checked.container, "problems": said},
            )


def concerns(holdings: Holdings, container: str) -> bool:
    """Return whether these attachments give the container devices for which its image has to be checked."""
    return bool(holdings) and bool(checked_devices(holdings.attached, container))


def _log_bug(container: str, done: Future[None]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.error("the container's image was not checked", extra={"container": container}, exc_info=error)

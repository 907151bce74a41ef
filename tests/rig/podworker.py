"""The kubelet's worker of one pod: what it asks for, in which order, and how long it waits before it asks again.

As pkg/kubelet/pod_workers.go and kuberuntime_manager.go have it: one attempt asks for the sandbox if there is none,
then for every container that does not run, whatever became of the one before; after an attempt that failed it comes
again, soon where an error says that the network is not ready, else much later.
"""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.deadline import wait_until

NOT_READY = "network is not ready"
SOON_S, LATER_S = (1.0, 1.5), (10.0, 15.0)
"""The pauses: 1 s and 10 s with a jitter of a half."""


@dataclass(slots=True, kw_only=True)
class Pod:
    """A pod on its way: its sandbox, the containers that run, and what was refused meanwhile."""

    name: str
    annotations: Mapping[str, str]
    wanted: Sequence[str]
    sandbox: Sandbox | None = None
    containers: dict[str, Container] = field(default_factory=dict)
    errors: list[CriError] = field(default_factory=list)
    seconds: float = 0.0
    """From the first request to the last container's start."""

    @property
    def runs(self) -> bool:
        """Whether all its containers were started."""
        return len(self.containers) == len(self.wanted)


class PodWorker:
    """Starts one pod."""

    def __init__(self, cri: Cri, pod: Pod, jitter: random.Random) -> None:
        self._cri = cri
        self._jitter = jitter
        self.pod = pod

    def start(self, within_s: float) -> Pod:
        """Attempts until it runs, or the time is over: then it does not run."""
        begin = time.monotonic()
        while errors := self.attempt():
            pause_s = self._jitter.uniform(*_pause(errors))
            if time.monotonic() + pause_s > begin + within_s:
                break
            time.sleep(pause_s)
        self.pod.seconds = time.monotonic() - begin
        return self.pod

    def start_until(self, over: threading.Event) -> None:
        """Attempts until it runs, or that is set."""
        while not over.is_set() and (errors := self.attempt()):
            over.wait(self._jitter.uniform(*_pause(errors)))

    def attempt(self) -> list[CriError]:
        """One; what was refused, nothing when all runs."""
        pod = self.pod
        seen = len(pod.errors)
        try:
            if pod.sandbox is None:
                pod.sandbox = self._cri.run_pod(pod.name, annotations=pod.annotations)
        except CriError as error:
            pod.errors.append(error)
        else:
            for name in pod.wanted:
                if name not in pod.containers:
                    self._try(pod.sandbox, name)
        return pod.errors[seen:]

    def _try(self, sandbox: Sandbox, name: str) -> None:
        try:
            container = self._cri.create_container(sandbox, name, retries=False)
            self._cri.start(container)
        except CriError as error:
            self.pod.errors.append(error)
        else:
            self.pod.containers[name] = container


def _pause(errors: Sequence[CriError]) -> tuple[float, float]:
    """The errors of an attempt are one text."""
    return SOON_S if any(NOT_READY in error.text for error in errors) else LATER_S


def run_insistently(cri: Cri, name: str, annotations: Mapping[str, str], code: str) -> Sandbox:
    """A pod that is asked for again while it is refused with this code, as the kubelet does; for 10 s."""

    def run() -> Sandbox | None:
        try:
            return cri.run_pod(name, annotations=annotations)
        except CriError as error:
            if f"nri-rdma: {code}: " not in error.text:
                raise
            return None

    return wait_until(run, f"pod {name} to run")

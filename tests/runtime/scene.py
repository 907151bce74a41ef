"""One daemon to which something happens, while a pod for each way to ask comes to the node.

All pods are at the same step at the same time. So a daemon that is killed during CreateContainer is killed while the
calls of all of them are under way, and one of them has been sent to it.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Self, TypeVar

from tests.rig import outcomes
from tests.rig.cri import Container, CriError, Sandbox
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.expect import look
from tests.rig.wanted import assert_nothing, lacking
from tests.runtime.asking import WAYS, Asked, Kubernetes

T = TypeVar("T")
BACK_S = 20.0
"""A container that had to wait starts this soon after the daemon is back."""
REPORT_S = 5.0


class Part:
    """A pod with one container, which ends where it is refused."""

    def __init__(self, on: Kubernetes, ask: str, handler: str) -> None:
        self.ask = ask
        self.asked = Asked()
        self.outcome = ""
        self._on = on
        self._cri = on.runtime.cri
        self._handler = handler
        self._pod: Sandbox | None = None
        self._container: Container | None = None
        self._attempt = 0

    @property
    def name(self) -> str:
        """The pod's."""
        return f"asks-{self.ask}"

    @property
    def is_refused(self) -> bool:
        """Whether it ended so."""
        return self.outcome.startswith(outcomes.REFUSED)

    def sandbox(self) -> None:
        """RunPodSandbox."""
        self._step(self._run_pod)

    def create(self) -> None:
        """CreateContainer."""
        self._step(self._create)

    def start(self) -> None:
        """StartContainer; the container that runs is looked at."""
        self._step(lambda: self._cri.start(self._made))
        if not self.is_refused:
            self.outcome = self._given()

    def again(self) -> str:
        """Make the container again and again, as the kubelet does; return what becomes of it."""
        told: list[str] = []
        try:
            wait_until(lambda: self._starts(told), "the container to start", BACK_S)
        except DeadlineError:
            return outcomes.refused(told[-1])
        return self._given()

    @property
    def _made(self) -> Container:
        assert self._container is not None
        return self._container

    def _step(self, call: Callable[[], None]) -> None:
        if self.is_refused:
            return
        try:
            call()
        except CriError as error:
            self.outcome = outcomes.refused(error.text)

    def _run_pod(self) -> None:
        asked = self.asked
        self._pod = self._cri.run_pod(
            self.name, annotations=asked.annotations, uid=asked.uid, runtime_handler=self._handler
        )

    def _create(self) -> None:
        assert self._pod is not None
        self._container = self._cri.create_container(
            self._pod,
            "main",
            annotations=self.asked.container_annotations,
            cdi_devices=self.asked.cdi_devices,
            add_capabilities=("MKNOD",),
            attempt=self._attempt,
        )

    def _starts(self, told: list[str]) -> bool:
        self._attempt += 1
        try:
            if self._pod is None:
                self._run_pod()
            self._create()
            self._cri.start(self._made)
        except CriError as error:
            told.append(error.text)
            return False
        return True

    def _given(self) -> str:
        """The container as it is seen inside."""
        seen, wanted = look(self._cri, self._made), self.asked.wanted
        if wanted is None:
            assert_nothing(seen)
            return outcomes.PLAIN
        opened = self._cri.exec(self._made, ["sh", "-c", wanted.opens]).stdout.splitlines()
        return outcomes.given(lacking(wanted, seen, opened, self._on.node), wanted.things)


class Scene:
    """The daemon and the pods, from construction to close(); also a context manager."""

    def __init__(self, on: Kubernetes, handlers: Mapping[str, str]) -> None:
        """`handlers` are the runtime handlers of the pods, by what they ask for."""
        self._on = on
        self._daemon = on.daemon()
        self._parts = [Part(on, ask, handler) for ask, handler in handlers.items()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def play(self, situation: str) -> dict[str, str]:
        """Have it happen; return the outcome of each way to ask."""
        if situation != "never":
            self._daemon.start()
        for part in self._parts:
            part.asked = WAYS[part.ask].prepare(self._on, part.name, None if situation == "never" else self._daemon)
        self._until_they_start(situation)
        self._come_back(situation)
        return dict(zip((it.ask for it in self._parts), self._all(self._afterwards), strict=True))

    def close(self) -> None:
        """Leave nothing: the pods go while a daemon runs, which gives everything back."""
        if not self._daemon.runs:
            self._daemon.start()
        for pod in self._on.runtime.cri.pods():
            self._on.runtime.cri.delete_pod(pod)
        wait_until(lambda: self._daemon.status()["sandboxes"] == [], "everything to be given back")
        self._daemon.stop()
        self._on.forget()

    def _until_they_start(self, situation: str) -> None:
        if situation == "before":
            self._daemon.kill()
        with self._killed_meanwhile(situation == "in-sandbox"):
            self._all(Part.sandbox)
        if self._daemon.runs:
            asking = sum((it.asked.wanted is not None) + it.asked.pods_before for it in self._parts)
            wait_until(lambda: self._states() == ["attached"] * asking, "the attaches to end")
        match situation:
            case "between":
                self._daemon.kill()
            case "stopped" | "woken":
                os.kill(self._daemon.pid, signal.SIGSTOP)
            case "upgraded":
                self._daemon.stop()
                self._daemon.start()
        with self._killed_meanwhile(situation == "in-container"):
            self._all(Part.create)
        if situation == "woken":
            os.kill(self._daemon.pid, signal.SIGCONT)
        self._all(Part.start)

    def _come_back(self, situation: str) -> None:
        """The daemon runs and knows the runtime's pods, as after everything that can happen to it."""
        if situation == "stopped":
            os.kill(self._daemon.pid, signal.SIGCONT)
        if situation in {"stopped", "woken"}:
            self._daemon.wait_synchronized(times=2)
        elif not self._daemon.runs:
            self._daemon.start()

    def _afterwards(self, part: Part) -> str:
        """The outcome, and what follows."""
        if part.is_refused:
            return f"{part.outcome}, then {part.again()}"
        if part.outcome in {outcomes.COMPLETE, outcomes.PLAIN}:
            return part.outcome
        return f"{part.outcome}, {'reported' if self._reports(part) else '**not reported**'}"

    def _reports(self, part: Part) -> bool:
        name = f"default/{part.name}"
        try:
            wait_until(lambda: name in [it["pod"] for it in self._daemon.status()["unserved"]], "a report", REPORT_S)
        except DeadlineError:
            return False
        return True

    def _states(self) -> list[str]:
        return [it["state"] for it in self._daemon.status()["sandboxes"]]

    def _all(self, step: Callable[[Part], T]) -> list[T]:
        with ThreadPoolExecutor(len(self._parts)) as pool:
            return list(pool.map(step, self._parts))

    @contextmanager
    def _killed_meanwhile(self, is_so: bool) -> Iterator[None]:
        """The daemon is killed when the runtime waits for its answer: the question lies in its socket, unread."""
        if not is_so:
            yield
            return
        os.kill(self._daemon.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(self._kill_when_asked)
            yield
            killing.result()

    def _kill_when_asked(self) -> None:
        wait_until(lambda: _has_unread(self._daemon.pid), "the runtime to have asked")
        self._daemon.kill()


def _has_unread(pid: int) -> bool:
    """Whether bytes lie in a unix socket of a process."""
    lines = subprocess.run(["ss", "-xHnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    return any(f"pid={pid}," in line and int(line.split()[2]) > 0 for line in lines)

"""Pods as the kubelet makes them, with verbs programs in their containers."""

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from tests.lab.outcomes import NO_DATA, OutcomeError
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.cri import Container, Cri, CriError, ExecResult, Sandbox
from tests.rig.deadline import wait_until

T = TypeVar("T")
PREFIX = "rdma.noderesource.dev"
OPERATOR = "operator"
"""The handler of pods in whose network an operator makes devices."""
NOWHERE = "operator-nowhere"
"""The same for pods whose own interface leads nowhere: they start sooner."""
GUARDED = "guarded"
"""The handler of pods whose containers have the guard's hook; an operator makes devices there, too."""
_OPERATORS = ("rxe", "siw")
_KUBELET_S = 120
"""How long a kubelet waits (runtimeRequestTimeout). On a busy host three emulated pods at once need half a minute."""
_TCP_LISTEN = "0A"
_TASKS = ("ctr", "-n", "k8s.io", "tasks")
PORT, _SIZE, _COUNT = 18515, 65536, 50
_TRANSFER_S = 40


@contextmanager
def pod(cri: Cri, name: str, annotations: dict[str, str], *, runtime_handler: str = "") -> Iterator[Sandbox]:
    """A pod for a while. What the product refuses is an OutcomeError with its code. Those that are called so get soft
    RDMA devices of the operator's making (cni_rdma.py)."""
    handler = runtime_handler or (OPERATOR if name.startswith(_OPERATORS) else "")
    sandbox = _patiently(
        cri, lambda: cri.run_pod(name, annotations=annotations, runtime_handler=handler, seconds=_KUBELET_S)
    )
    try:
        yield sandbox
    finally:
        cri.delete_pod(sandbox, seconds=_KUBELET_S)


def asks(text: str) -> dict[str, str]:
    """The annotations of a pod that asks for one request."""
    return {f"{PREFIX}/pod": f"- {{{text}}}"}


def start(
    cri: Cri,
    sandbox: Sandbox,
    name: str,
    command: Sequence[str] = ("/bin/sleep", "1000000"),
    *,
    user: int | None = None,
    cdi_devices: Sequence[str] = (),
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> Container:
    """A running container of the workload image. What the product refuses is an OutcomeError with its code."""
    container = create(cri, sandbox, name, command, user=user, cdi_devices=cdi_devices, annotations=annotations)
    cri.start(container)
    return container


def create(
    cri: Cri,
    sandbox: Sandbox,
    name: str,
    command: Sequence[str] = ("/bin/sleep", "1000000"),
    *,
    user: int | None = None,
    cdi_devices: Sequence[str] = (),
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> Container:
    """The same, not yet started."""
    return _patiently(
        cri,
        lambda: cri.create_container(
            *(sandbox, name, command),
            image=WORKLOAD,
            user=user,
            cdi_devices=cdi_devices,
            annotations=annotations,
        ),
    )


def end_refused(cri: Cri) -> None:
    """Ends what containerd (2.1.9) leaves of a sandbox that NRI refused: its process, and with it its namespace.
    The daemon does so too, a second after its answer: whoever comes first.

    CRI no longer knows that sandbox, so that no kubelet ends it. The kernel's rdmaNetns cannot be changed meanwhile.
    """
    known = {pod.id for pod in cri.pods()} | {container.id for container in cri.containers()}
    tasks = subprocess.run([*_TASKS, "list", "-q"], capture_output=True, text=True, check=True).stdout.split()
    for left in set(tasks) - known:
        wait_until(partial(_is_killed, left), f"{left}, which NRI refused, to be killed")


def _is_killed(task: str) -> bool:
    """Return whether containerd took the signal, or knows no such process; False while the task's shim ends, when it
    says `ttrpc: closed`."""
    done = subprocess.run([*_TASKS, "kill", "--signal", "SIGKILL", task], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or re.search("not found|ttrpc: closed", done.stderr), done.stderr
    return "ttrpc: closed" not in done.stderr


class Program:
    """A program that runs in a container while the test goes on."""

    def __init__(self, cri: Cri, container: Container, command: Sequence[str], *, seconds: int = 60) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=command[0])
        self._result = self._threads.submit(cri.exec, container, command, seconds=seconds)

    def end(self) -> ExecResult:
        """Its result, once it has ended. CriError: it did not end in time."""
        self._threads.shutdown()
        return self._result.result()


def bandwidth(cri: Cri, receiver: "Peer", sender: "Peer") -> float:
    """The MiB/s that ib_send_bw moves between two pods, see bandwidth_in. OutcomeError: not all data arrives."""
    listening = Program(cri, receiver.container, send_bw(receiver.device, receiver.gid_index), seconds=_TRANSFER_S)
    wait_until_listening(cri.container_status(receiver.container).pid, PORT)
    try:
        sent = cri.exec(
            sender.container,
            [*send_bw(sender.device, sender.gid_index), cri.pod_status(receiver.sandbox).ip],
            seconds=_TRANSFER_S,
        )
        received = listening.end()
    except CriError as error:
        raise OutcomeError(NO_DATA, f"in {_TRANSFER_S} s: {error}") from error
    if (sent.exit_code, received.exit_code) != (0, 0):
        raise OutcomeError(NO_DATA, f"{sent}\n{received}")
    return bandwidth_in(sent.stdout)


def bandwidth_in(shown: str) -> float:
    """The MiB/s in what a sending ib_send_bw shows once all is sent; 0 where the host is so busy that it could not find
    out how fast this machine's clock is."""
    row = re.search(rf"^\s*{_SIZE}\s+{_COUNT}\s+\S+\s+([\d.]+)", shown, re.MULTILINE)
    assert row, shown
    print(f"{row.group(1)} MiB/s")
    return float(row.group(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A container that sends or receives, with the device and the entry of its GID table that it does it by."""

    sandbox: Sandbox
    container: Container
    device: str
    gid_index: int


def send_bw(device: str, gid_index: int) -> list[str]:
    """The command that receives; with an address, the one that sends there."""
    way = ["-d", device, "-x", str(gid_index)]
    return ["ib_send_bw", *way, "-n", str(_COUNT), "-s", str(_SIZE), "-p", str(PORT), "-F"]


def wait_until_listening(pid: int, port: int) -> None:
    """Until a process of that one's network namespace takes connections on a TCP port."""
    wait_until(lambda: _listens(pid, port), f"port {port} of pid {pid} to be listened on", seconds=30)


def _listens(pid: int, port: int) -> bool:
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == _TCP_LISTEN and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


def _patiently(cri: Cri, ask: Callable[[], T]) -> T:
    """The answer, asked again as the kubelet does while the product is not ready, or has not read a device that is new:
    a busy host makes it slow."""

    def answer() -> T | None:
        try:
            return ask()
        except CriError as error:
            end_refused(cri)
            refusal = _refused(error)
            if isinstance(refusal, OutcomeError) and refusal.outcome in {"NOT-READY", "INVENTORY"}:
                return None
            raise refusal from error

    return wait_until(answer, "the product to be ready", seconds=60)


def _refused(error: CriError) -> Exception:
    """The product's refusal as an outcome, by the code of its cause; any other error as it is."""
    codes = re.findall(r"nri-rdma: ([A-Z-]+):", error.text)
    return OutcomeError(codes[-1], error.text) if codes else error

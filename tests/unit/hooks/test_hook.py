"""The OCI hook as OCI runtimes call it: a program, a state on stdin, a container's config.json, a daemon or none."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.proof import ProofStep
from nri_rdma.text.annotations import asks_for_devices
from nri_rdma.ttrpc import Server
from tests.rig.deadline import wait_until
from tests.rig.dra_state import ClaimState, write
from tests.unit.hooks.ended import ONE_LINE, Ended
from tests.unit.rigs.inside_daemon import InsideDaemon

PROJECT = Path(__file__).resolve().parents[3]
HOOK = PROJECT / "hooks/nri-rdma-hook"
MODULE = HOOK.with_name("nri_rdma_hook.py")
PREFIX = "rdma.noderesource.dev"
TWO = {PREFIX: "[{match: {device: mlx5_2}, containers: [a]}]"}
CONTAINERD = {
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.container-name": "a",
    "io.kubernetes.cri.sandbox-id": "sandbox-one",
    "io.kubernetes.cri.sandbox-name": "one",
    "io.kubernetes.cri.sandbox-namespace": "default",
}
CRIO = {
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.SandboxID": "sandbox-one",
    "io.kubernetes.container.name": "a",
    "io.kubernetes.pod.name": "one",
    "io.kubernetes.pod.namespace": "default",
}


def run(state: bytes, *flags: str, command: str = "verify") -> Ended:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(HOOK), command, *flags], input=state, capture_output=True, check=False
    )
    assert done.stdout == b""
    return Ended(code=done.returncode, error=done.stderr.decode())


class Container:
    """A container that an OCI runtime has made."""

    def __init__(self, folder: Path, annotations: Mapping[str, Any], edits: ContainerEdits | None = None) -> None:
        self.bundle = folder / "bundle"
        self.bundle.mkdir(parents=True)
        self.annotations = annotations
        self.config: Any = {
            "process": {"env": ["PATH=/bin", *(f"{name}={value}" for name, value in (edits.env if edits else ()))]},
            "linux": {
                "devices": [
                    {"type": "c", "path": node.path, "major": node.major, "minor": node.minor}
                    for node in (edits.char_devices if edits else ())
                ]
            },
        }

    def state(self) -> bytes:
        """What comes on the hook's stdin."""
        (self.bundle / "config.json").write_text(json.dumps(self.config))
        state = {"ociVersion": "1.1.0", "id": "id-of-a", "status": "creating", "pid": 7, "bundle": str(self.bundle)}
        return json.dumps({**state, "annotations": self.annotations}).encode()


def socket_of(path: Path) -> tuple[str, str]:
    return "--control-socket", str(path)


@pytest.mark.parametrize("words", [CONTAINERD, CRIO], ids=["containerd", "CRI-O"])
def test_a_container_that_has_what_it_was_given_may_start(
    daemon: InsideDaemon, tmp_path: Path, words: Mapping[str, str]
) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = daemon.edits(pod, TWO, "a")
    state = Container(tmp_path, {**words, **TWO}, edits).state()
    assert run(state, *socket_of(daemon.settings.control_path)) == Ended(code=0, error="")
    told = ask_status(daemon.settings.control_path)["guard"]
    assert (told["active"], told["asked"], told["refused"]) == ("createRuntime hook", 1, 0)


def test_a_container_without_what_it_was_to_get_is_refused_in_the_daemons_words(
    daemon: InsideDaemon, tmp_path: Path
) -> None:
    daemon.start_pod("one", TWO)
    ended = run(Container(tmp_path, {**CONTAINERD, **TWO}).state(), *socket_of(daemon.settings.control_path))
    assert ended.refused_with == "NOT-SERVED"
    assert "without /dev/infiniband/uverbs2, " in ended.error
    assert "default/one, container a" in ended.error
    assert ask_status(daemon.settings.control_path)["guard"]["refused"] == 1


PROVE = {PREFIX: "[{match: {device: mlx5_2}, prove: true}]"}
CGROUP = "/kubepods/pod1/id-of-a"


def to_be_proven(daemon: InsideDaemon, folder: Path) -> Container:
    """A container that the daemon has answered for, whose pod asks for a proof."""
    daemon.make_cgroups(CGROUP)
    pod = daemon.start_pod("one", PROVE)
    made = Container(folder, {**CONTAINERD, **PROVE}, daemon.edits(pod, PROVE, "a"))
    daemon.engine.container_created(pod.sandbox_id, "a", CGROUP)
    return made


def test_a_container_that_is_to_be_proven_is_proven_with_what_its_configuration_says(
    daemon: InsideDaemon, tmp_path: Path
) -> None:
    made = to_be_proven(daemon, tmp_path)
    made.config["process"]["env"].append("NCCL_IB_GID_INDEX=3")
    limits = [
        {"type": "RLIMIT_NOFILE", "soft": 9, "hard": 9},
        {"type": "RLIMIT_MEMLOCK", "soft": 65536, "hard": 1 << 20},
    ]
    made.config["process"]["rlimits"] = limits
    assert run(made.state(), *socket_of(daemon.settings.control_path)) == Ended(code=0, error="")
    ((task, within_s),) = daemon.prover.asked
    assert (task.pid, task.memlock, task.devices[0].gid_index, task.cgroups_path) == (7, 65536, 3, CGROUP)
    assert within_s == pytest.approx(daemon.settings.proof_timeout, abs=2)
    assert run(made.state(), *socket_of(daemon.settings.control_path)).code == 0, "a second hook of the container"
    assert len(daemon.prover.asked) == 1


LOCKS = {"effective": ["CAP_IPC_LOCK"]}


@pytest.mark.parametrize(
    ("soft", "process", "namespaces", "may_lock"),
    [
        (65536, {}, (), False),
        (2**64 - 1, {}, (), True),
        (65536, {"capabilities": LOCKS}, ("network",), True),
        (65536, {"capabilities": LOCKS}, ("user",), False),
        (65536, {"capabilities": LOCKS, "user": {"uid": 7}}, (), False),
        (65536, {"capabilities": {"ambient": ["CAP_IPC_LOCK"]}, "user": {"uid": 7}}, (), True),
    ],
    ids=["limited", "unlimited", "root with CAP_IPC_LOCK", "root of a user namespace", "another user", "ambient"],
)
def test_whether_a_limit_holds_the_program_is_told(
    daemon: InsideDaemon,
    tmp_path: Path,
    soft: int,
    process: Mapping[str, object],
    namespaces: tuple[str, ...],
    may_lock: bool,
) -> None:
    made = to_be_proven(daemon, tmp_path)
    made.config["process"] |= {"rlimits": [{"type": "RLIMIT_MEMLOCK", "soft": soft, "hard": soft}], **process}
    made.config["linux"]["namespaces"] = [{"type": it} for it in namespaces]
    assert run(made.state(), *socket_of(daemon.settings.control_path)).code == 0
    ((task, _),) = daemon.prover.asked
    assert task.memlock == (2**64 - 1 if may_lock else 65536)


def test_a_container_that_cannot_be_proven_is_refused_in_the_daemons_words(
    daemon: InsideDaemon, tmp_path: Path
) -> None:
    made = to_be_proven(daemon, tmp_path)
    daemon.prover.fail(ProofStep.PORT, "the port is DOWN")
    ended = run(made.state(), *socket_of(daemon.settings.control_path))
    assert ended.refused_with == "PROOF-PORT"
    assert "the port is DOWN" in ended.error


def test_a_proof_may_take_longer_than_a_hook_waits_for_an_answer_and_others_do_not_wait(
    daemon: InsideDaemon, tmp_path: Path
) -> None:
    made = to_be_proven(daemon, tmp_path / "slow")
    daemon.prover.takes_s = 1.0
    flags = (*socket_of(daemon.settings.control_path), "--timeout", "0.5")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(run, made.state(), *flags)
        wait_until(lambda: bool(daemon.prover.asked), "the proof to begin")
        pod = daemon.start_pod("two", {PREFIX: "[{match: {device: mlx5_3}}]"})
        words = {**CONTAINERD, "io.kubernetes.cri.sandbox-id": pod.sandbox_id, PREFIX: "[{match: {device: mlx5_3}}]"}
        other = Container(tmp_path / "other", words, daemon.edits(pod, {PREFIX: words[PREFIX]}, "a"))
        assert run(other.state(), *flags).code == 0
        assert not slow.done()
        assert slow.result() == Ended(code=0, error="")


def test_a_hook_of_an_older_release_is_told_to_be_installed_again(daemon: InsideDaemon, tmp_path: Path) -> None:
    made = json.loads(to_be_proven(daemon, tmp_path).state())
    del made["pid"]  # what it says is not read by such a hook
    ended = run(json.dumps(made).encode(), *socket_of(daemon.settings.control_path))
    assert ended.refused_with == "PROOF-UNAVAILABLE"
    assert "nri-rdma install containerd" in ended.error


UID = "6f0c0000-0000-4000-8000-000000000001"
UIDS = ({**CONTAINERD, "io.kubernetes.cri.sandbox-uid": UID}, {**CRIO, "io.kubernetes.pod.uid": UID})
OURS = "rdma.noderesource.dev"
CLAIMED = f"{OURS}/claim=u1-nic"


def claims_of(folder: Path, *names: str, pod: str = UID, driver: str = OURS) -> tuple[str, str]:
    """The kubelet's checkpoint, with a claim of a pod; the flag for it."""
    file = folder / "dra_manager_state"
    write(file, (ClaimState(uid="u1", name="nics", pods=(pod,), cdi_devices={driver: names}),))
    return "--kubelet-checkpoint", str(file)


def compact(annotations: Mapping[str, str], folder: Path) -> bytes:
    """The state as the runtimes, which are Go and C, write it."""
    made = json.loads(Container(folder, annotations).state())
    return json.dumps(made, separators=(",", ":")).encode()


@pytest.mark.parametrize("words", UIDS, ids=["containerd", "CRI-O"])
def test_a_pod_with_a_claim_that_no_container_names_does_not_start_without_a_daemon(
    tmp_path: Path, words: Mapping[str, str]
) -> None:
    flags = (*socket_of(tmp_path / "nobody.sock"), *claims_of(tmp_path, CLAIMED))
    for state in (compact(words, tmp_path / "a"), Container(tmp_path / "b", words).state()):
        assert run(state, *flags).refused_with == "DAEMON-ABSENT"


def test_a_pod_without_a_claim_starts_without_a_daemon_beside_those_that_have_one(tmp_path: Path) -> None:
    nobody = socket_of(tmp_path / "nobody.sock")
    ours = claims_of(tmp_path, CLAIMED, pod="6f0c0000-0000-4000-8000-000000000002")
    for number, (words, flags) in enumerate(
        (
            (UIDS[0], ours),
            (CONTAINERD, ours),
            (UIDS[0], (ours[0], "/no/file")),
            (UIDS[0], (ours[0], str(tmp_path))),
        )
    ):
        assert run(compact(words, tmp_path / str(number)), *nobody, *flags) == Ended(code=0, error="")
    gpu = claims_of(tmp_path, "gpu.example.com/gpu=0", driver="gpu.example.com")
    assert run(compact(UIDS[0], tmp_path / "gpu"), *nobody, *gpu) == Ended(code=0, error="")


def test_the_daemon_is_asked_for_the_claims_of_the_pod(daemon: InsideDaemon, tmp_path: Path) -> None:
    flags = (*socket_of(daemon.settings.control_path), *claims_of(tmp_path, CLAIMED))
    ended = run(compact(UIDS[0], tmp_path / "a"), *flags)
    assert ended.refused_with == "NOT-READY"  # this daemon has no kubelet that could tell who names it
    assert "which containers name the pod's claims" in ended.error


def test_a_checkpoint_of_another_form_refuses_only_who_may_have_a_claim(tmp_path: Path) -> None:
    file = tmp_path / "dra_manager_state"
    flags = (*socket_of(tmp_path / "nobody.sock"), "--kubelet-checkpoint", str(file))
    for text in (f"{UID} {OURS}", json.dumps({"Data": json.dumps({"Claims": [UID, OURS]})}), f'{{"{UID}": "{OURS}"'):
        file.write_text(text)
        ended = run(compact(UIDS[0], tmp_path / "a" / str(len(text))), *flags)
        assert ended.refused_with == "KUBELET-STATE"
        assert "default/one" in ended.error
        other = {**UIDS[0], "io.kubernetes.cri.sandbox-uid": "6f0c0000-0000-4000-8000-000000000002"}
        assert run(compact(other, tmp_path / "b" / str(len(text))), *flags) == Ended(code=0, error="")
    assert run(compact(UIDS[0], tmp_path / "c"), *flags[:3], *claims_of(tmp_path)[1:]).refused_with == "KUBELET-STATE"


def test_a_pod_cannot_hide_its_claim_behind_another_uid(tmp_path: Path) -> None:
    """CRI-O hands on annotations that the pod's author wrote."""
    flags = (*socket_of(tmp_path / "nobody.sock"), *claims_of(tmp_path, CLAIMED))
    forged = {**UIDS[1], "io.kubernetes.cri.sandbox-uid": "another"}
    assert run(compact(forged, tmp_path / "a"), *flags).refused_with == "OCI-STATE"
    words = {"x": '"io.kubernetes.pod.uid":"another"', **UIDS[1]}
    assert run(compact(words, tmp_path / "b"), *flags).refused_with == "DAEMON-ABSENT"


def test_a_pod_that_asks_for_nothing_starts_without_a_daemon(tmp_path: Path) -> None:
    nobody = socket_of(tmp_path / "nobody.sock")
    for words in (
        {},
        CONTAINERD,
        {**CONTAINERD, f"{PREFIX}.other": "1", "other": PREFIX},
        {**CONTAINERD, PREFIX: "", f"{PREFIX}/container.a": " [] "},
        {**CONTAINERD, **TWO, "io.kubernetes.cri.container-type": "sandbox"},
        {**CRIO, **TWO, "io.kubernetes.cri-o.ContainerType": "sandbox"},
    ):
        state = json.dumps({"id": "x", "bundle": "/nowhere", "annotations": words}).encode()
        assert run(state, *nobody) == Ended(code=0, error=""), words


def test_a_container_with_shares_asks_whatever_its_pod_says(daemon: InsideDaemon, tmp_path: Path) -> None:
    state = Container(tmp_path, CONTAINERD).state()
    own = socket_of(daemon.settings.control_path)
    assert run(state, *own) == Ended(code=0, error="")
    ended = run(state, *own, "--pool", "hcas")
    assert ended.refused_with == "NOT-ATTACHED"
    assert "this container has shares of pool hcas and no device is attached for them" in ended.error
    assert run(state, *socket_of(tmp_path / "nobody.sock"), "--pool=hcas").refused_with == "DAEMON-ABSENT"
    pause = Container(tmp_path / "pause", {**CONTAINERD, "io.kubernetes.cri.container-type": "sandbox"}).state()
    assert run(pause, *own, "--pool", "hcas") == Ended(code=0, error="")


def test_a_container_with_a_claim_asks_whatever_its_pod_says(daemon: InsideDaemon, tmp_path: Path) -> None:
    state, device = Container(tmp_path, CONTAINERD).state(), "rdma.noderesource.dev/claim=u1-nic"
    own = socket_of(daemon.settings.control_path)
    ended = run(state, *own, "--device", device)
    assert ended.refused_with == "NOT-ATTACHED"
    assert run(state, *socket_of(tmp_path / "nobody.sock"), f"--device={device}").refused_with == "DAEMON-ABSENT"
    pause = Container(tmp_path / "pause", {**CONTAINERD, "io.kubernetes.cri.container-type": "sandbox"}).state()
    assert run(pause, *own, "--device", device) == Ended(code=0, error="")


def test_a_container_with_the_guard_resource_asks_whatever_its_pod_says(daemon: InsideDaemon, tmp_path: Path) -> None:
    state, resource = Container(tmp_path, CONTAINERD).state(), "rdma.noderesource.dev/guard"
    own = socket_of(daemon.settings.control_path)
    ended = run(state, *own, "--resource", resource)
    assert ended.refused_with == "NOT-SERVED"
    assert resource in ended.error
    daemon.engine.container_created("sandbox-one", "a", "/kubepods/id-of-a")
    assert run(state, *own, f"--resource={resource}") == Ended(code=0, error="")
    assert run(state, *socket_of(tmp_path / "nobody.sock"), "--resource", resource).refused_with == "DAEMON-ABSENT"
    pause = Container(tmp_path / "pause", {**CONTAINERD, "io.kubernetes.cri.container-type": "sandbox"}).state()
    assert run(pause, *own, "--resource", resource) == Ended(code=0, error="")


def test_a_refusal_without_a_daemon_says_how_to_start_it_also_where_it_runs_in_a_pod(tmp_path: Path) -> None:
    ended = run(Container(tmp_path, {**CONTAINERD, PREFIX: "1"}).state(), *socket_of(tmp_path / "nobody.sock"))
    assert ended.refused_with == "DAEMON-ABSENT"
    assert "start it (systemctl start nri-rdma; on Kubernetes see its pod on this node)" in ended.error


@pytest.mark.parametrize("value", ["\u00a0null", "\u3000[]", "\x1c", "\x0bnull", "\t[]", "\t"])
def test_only_what_the_daemon_takes_for_blank_is_blank(tmp_path: Path, value: str) -> None:
    state = Container(tmp_path, {**CONTAINERD, PREFIX: value}).state()
    assert asks_for_devices({PREFIX: value})
    assert run(state, *socket_of(tmp_path / "nobody.sock")).refused_with == "DAEMON-ABSENT"
    blank = state.replace(json.dumps(value).encode(), json.dumps(" \r\n[] \n").encode())
    assert not asks_for_devices({PREFIX: " \r\n[] \n"})
    assert run(blank, *socket_of(tmp_path / "nobody.sock")) == Ended(code=0, error="")


def test_a_key_that_is_written_with_escapes_asks_too(tmp_path: Path) -> None:
    state = Container(tmp_path, {**CONTAINERD, f"{PREFIX}/pod": "1"}).state()
    for written in (b"rdma.noderesource.dev\\/pod", b"\\u0072dma.noderesource.dev/pod"):
        text = state.replace(b"rdma.noderesource.dev/pod", written)
        assert json.loads(text) == json.loads(state)
        assert run(text, *socket_of(tmp_path / "nobody.sock")).refused_with == "DAEMON-ABSENT"


def test_another_prefix_is_heeded(tmp_path: Path) -> None:
    state = Container(tmp_path, {**CONTAINERD, "rdma.example.com": "1"}).state()
    nobody = socket_of(tmp_path / "nobody.sock")
    assert run(state, *nobody).code == 0
    assert run(state, "--annotation-prefix=rdma.example.com", *nobody).refused_with == "DAEMON-ABSENT"
    assert run(state, "--annotation-prefix", "rdma.example.com", *nobody).refused_with == "DAEMON-ABSENT"


def test_a_pod_that_asks_waits_for_a_daemon_that_is_gone_or_was_killed(tmp_path: Path) -> None:
    state = Container(tmp_path, {**CONTAINERD, **TWO}).state()
    path = tmp_path / "control.sock"
    assert run(state, *socket_of(path)).refused_with == "DAEMON-ABSENT"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    ended = run(state, *socket_of(path))
    assert ended.refused_with == "DAEMON-ABSENT"
    assert "Connection refused" in ended.error


def test_a_daemon_that_does_not_answer_in_time_refuses(tmp_path: Path) -> None:
    state = Container(tmp_path, {**CONTAINERD, **TWO}).state()
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "control.sock"))
        stopped.listen(1)
        ended = run(state, *socket_of(tmp_path / "control.sock"), "--timeout", "0.1")
    assert ended.refused_with == "DAEMON-LATE"
    assert "in 0.1 s" in ended.error


@contextmanager
def somebody(path: Path, answer: Callable[[], bytes]) -> Iterator[None]:
    """Another program on the control socket, which says the same to everything."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer())

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(30)


def test_a_connection_that_is_reset_is_tried_once_more(tmp_path: Path) -> None:
    """A daemon with too many callers at once closes those that are too many."""
    state, path = Container(tmp_path, {**CONTAINERD, **TWO}).state(), tmp_path / "control.sock"
    with resetting(path, 1, lambda: reply(b"\x12\x02\x08\x01")) as accepted:
        assert run(state, *socket_of(path)) == Ended(code=0, error="")
    assert accepted == [1, 2]


def test_a_daemon_that_resets_every_connection_is_not_called_absent(tmp_path: Path) -> None:
    state, path = Container(tmp_path, {**CONTAINERD, **TWO}).state(), tmp_path / "control.sock"
    with resetting(path, 2, lambda: b"") as accepted:
        ended = run(state, *socket_of(path))
    assert accepted == [1, 2]
    assert ended.refused_with == "DAEMON-LATE"
    assert "too many callers at once" in ended.error
    assert "start it" not in ended.error


def test_a_daemon_whose_queue_is_full_is_asked_again_within_the_time(tmp_path: Path) -> None:
    state, path = Container(tmp_path, {**CONTAINERD, **TWO}).state(), tmp_path / "control.sock"
    with full(path) as (listening, waiting), ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run, state, *socket_of(path), "--timeout", "8")
        time.sleep(1)  # its first call was refused by now, its second one comes after two seconds
        for _ in waiting:
            listening.accept()[0].close()
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(reply(b"\x12\x02\x08\x01"))
        assert ended.result(10) == Ended(code=0, error="")


def test_a_queue_that_stays_full_is_told_as_such_before_the_time_is_over(tmp_path: Path) -> None:
    state, path = Container(tmp_path, {**CONTAINERD, **TWO}).state(), tmp_path / "control.sock"
    with full(path):
        ended = run(state, *socket_of(path), "--timeout", "1")
    assert ended.refused_with == "DAEMON-LATE"
    assert "too many callers at once" in ended.error


@contextmanager
def resetting(path: Path, times: int, answer: Callable[[], bytes]) -> Iterator[list[int]]:
    """A program that closes connections unread that many times, and then answers one; the numbers of those accepted."""
    accepted: list[int] = []

    def serve() -> None:
        for number in range(1, times + (2 if answer() else 1)):
            connection, _ = listening.accept()
            with connection:
                accepted.append(number)
                if number > times:
                    connection.recv(1 << 16)
                    connection.sendall(answer())
                else:
                    connection.recv(1, socket.MSG_PEEK)  # closed with unread data: a reset

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(8)
        listening.settimeout(10)
        thread = threading.Thread(target=serve)
        thread.start()
        yield accepted
        thread.join(11)


@contextmanager
def full(path: Path) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """A listening socket whose queue takes no more, and the connections in it."""
    waiting: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listening, ExitStack() as stack:
        listening.bind(str(path))
        listening.listen(1)
        listening.settimeout(10)
        while True:
            caller = stack.enter_context(socket.socket(socket.AF_UNIX))
            caller.setblocking(False)
            try:
                caller.connect(str(path))
            except BlockingIOError:
                break
            waiting.append(caller)
        yield listening, waiting


def reply(data: bytes, kind: int = 2) -> bytes:
    """A frame of ttrpc on the first stream."""
    return len(data).to_bytes(4, "big") + b"\0\0\0\1" + bytes((kind, 0)) + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n",
        reply(b""),  # a response without a word: no yes
        reply(b"\x12\x00"),
        reply(b"\x12\x02\x08\x00"),  # complete = false, and no reason
        reply(b"\x12\x02\x08\x01", kind=1),
        reply(b"\x12\x02\x08"),
        reply(b"\xff" * 12),
        reply(b"\x12\x7f\x08\x01"),
        reply(b"\x10\x01"),
        (1 << 24).to_bytes(4, "big") + b"\0\0\0\1\2\0",
        reply(b"\x12\x02\x08\x01")[:-1],
    ],
    ids=[
        "nothing", "HTTP", "empty", "empty answer", "no", "a request", "cut answer", "endless number", "cut field",
        "number for a message", "too long", "cut frame",
    ],
)  # fmt: skip
def test_only_a_clear_yes_lets_a_container_start(tmp_path: Path, data: bytes) -> None:
    state = Container(tmp_path, {**CONTAINERD, **TWO}).state()
    with somebody(tmp_path / "control.sock", lambda: data):
        assert run(state, *socket_of(tmp_path / "control.sock")).refused_with == "DAEMON-ABSENT"


def test_fields_that_a_later_daemon_adds_are_passed_over(tmp_path: Path) -> None:
    state = Container(tmp_path, {**CONTAINERD, **TWO}).state()
    later = b"\x1a\x03new" + b"\x20\x07" + b"\x29" + b"\0" * 8 + b"\x35" + b"\0" * 4 + b"\x08\x01"
    with somebody(tmp_path / "control.sock", lambda: reply(b"\x12" + bytes((len(later),)) + later)):
        assert run(state, *socket_of(tmp_path / "control.sock")) == Ended(code=0, error="")


@pytest.mark.parametrize(
    ("served", "words"), [("Status", "control.sock): method Verify"), ("Verify", "control.sock): 'a bug'")]
)
def test_a_daemon_that_cannot_say_refuses_in_its_own_words(tmp_path: Path, served: str, words: str) -> None:
    def fail(_call: object) -> bytes:
        raise KeyError("a bug")

    with Server({("nri_rdma.control.v1.Control", served): fail}) as server:
        server.serve_unix(tmp_path / "control.sock")
        state = Container(tmp_path, {**CONTAINERD, **TWO}).state()
        ended = run(state, *socket_of(tmp_path / "control.sock"))
    assert ended.refused_with == "DAEMON-ABSENT"
    assert words in ended.error


def test_a_refusal_is_one_line_whatever_names_have_in_them(tmp_path: Path) -> None:
    words = {**CONTAINERD, "io.kubernetes.cri.sandbox-name": "one\ntwo\r\n" + "x" * 5000}
    ended = run(Container(tmp_path, {**words, **TWO}).state(), *socket_of(tmp_path / "nobody.sock"))
    assert (ended.code, ended.error.count("\n"), "\r" in ended.error) == (1, 1, False)
    assert ended.error.startswith("nri-rdma: DAEMON-ABSENT: the daemon is gone: No such file or directory")
    assert len(ended.error) <= 1001


@pytest.mark.parametrize(
    "state",
    [
        b'{"annotations": {"rdma.noderesource.dev": "1"',
        b'["rdma.noderesource.dev"]',
        b'{"annotations": ["rdma.noderesource.dev"]}',
        b'{"annotations": {"rdma.noderesource.dev": "1"}}',
        b'{"annotations": {"rdma.noderesource.dev": 1, "io.kubernetes.cri.container-name": "a"}}',
        b'{"annotations": {"rdma.noderesource.dev": "1"}, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"rdma.noderesource.dev\xff\xfe",
    ],
    ids=["cut", "list", "list of annotations", "no sandbox", "number", "deep", "bytes"],
)
def test_a_state_that_cannot_be_read_and_names_us_refuses(state: bytes) -> None:
    assert run(state).refused_with == "OCI-STATE"


@pytest.mark.parametrize("config", [None, "{", "[]", '{"linux": {"devices": [{"type": "c"}]}}', '{"process": 3}'])
def test_a_configuration_that_cannot_be_read_refuses(daemon: InsideDaemon, tmp_path: Path, config: str | None) -> None:
    daemon.start_pod("one", TWO)
    container = Container(tmp_path, {**CONTAINERD, **TWO})
    state = container.state()
    file = container.bundle / "config.json"
    file.unlink()
    if config is not None:
        file.write_text(config)
    assert run(state, *socket_of(daemon.settings.control_path)).refused_with in {"OCI-STATE", "NOT-SERVED"}


def test_what_a_pods_author_writes_stays_in_the_one_line(daemon: InsideDaemon, tmp_path: Path) -> None:
    annotations = {**CONTAINERD, PREFIX: "a: \nnri-rdma: x", f"{PREFIX}/\ud800": "\0", "big": "x" * 300_000}
    annotations["io.kubernetes.cri.sandbox-id"] = "unknown"
    state = Container(tmp_path, annotations).state()
    assert run(state, *socket_of(daemon.settings.control_path)).refused_with == "NOT-ATTACHED"


@pytest.mark.parametrize(
    "spoofed",
    [
        {**CRIO, "io.kubernetes.cri.sandbox-id": "of-another-pod"},
        {**CRIO, "io.kubernetes.cri.container-type": "sandbox"},
        {**CONTAINERD, "io.kubernetes.container.name": "b"},
        {**CONTAINERD, "io.kubernetes.cri-o.ContainerType": "sandbox"},
    ],
)
def test_a_pods_author_cannot_have_another_container_asked_about(
    daemon: InsideDaemon, tmp_path: Path, spoofed: Mapping[str, str]
) -> None:
    state = Container(tmp_path, {**spoofed, **TWO}).state()
    assert run(state, *socket_of(daemon.settings.control_path)).refused_with == "OCI-STATE"
    assert ask_status(daemon.settings.control_path)["guard"]["asked"] == 0


def test_a_status_that_takes_long_keeps_no_container_from_starting(daemon: InsideDaemon, tmp_path: Path) -> None:
    daemon.make_cgroups("/pod/a")
    pod = daemon.start_pod("one", TWO)
    daemon.engine.container_created(pod.sandbox_id, "a", "/pod/a")
    slow = daemon.cgroup_file("/pod/a", "rdma.max")
    slow.unlink()
    os.mkfifo(slow)  # whoever reads it waits for a writer
    status = threading.Thread(target=ask_status, args=(daemon.settings.control_path,))
    status.start()
    with slow.open("w") as reader_is_there:  # opens when the status reads
        state = Container(tmp_path, {**CONTAINERD, **TWO}, daemon.edits(pod, TWO, "a")).state()
        assert run(state, *socket_of(daemon.settings.control_path)) == Ended(code=0, error="")
        assert status.is_alive()
        reader_is_there.write("")
    status.join(30)
    assert not status.is_alive()


def test_many_containers_at_once_are_answered(daemon: InsideDaemon, tmp_path: Path) -> None:
    pod = daemon.start_pod("one", TWO)
    state = Container(tmp_path, {**CONTAINERD, **TWO}, daemon.edits(pod, TWO, "a")).state()
    flags = (*socket_of(daemon.settings.control_path), "--timeout", "20")
    with ThreadPoolExecutor(40) as pool:
        ended = list(pool.map(lambda _: run(state, *flags), range(40)))
    assert set(ended) == {Ended(code=0, error="")}


def test_numbers_of_any_size_reach_the_daemon(daemon: InsideDaemon, tmp_path: Path) -> None:
    pod = daemon.start_pod("one", TWO)
    container = Container(tmp_path, {**CONTAINERD, **TWO}, daemon.edits(pod, TWO, "a"))
    container.config["linux"]["devices"] += [
        {"type": "c", "path": f"/dev/x{number}", "major": number, "minor": number} for number in (-1, 1 << 20, 300)
    ]
    container.config["linux"]["devices"].append({"type": "p", "path": "/dev/fifo"})
    assert run(container.state(), *socket_of(daemon.settings.control_path)) == Ended(code=0, error="")


def test_a_configuration_that_is_no_file_is_refused_at_once(daemon: InsideDaemon, tmp_path: Path) -> None:
    pod = daemon.start_pod("one", TWO)
    state = Container(tmp_path, {**CONTAINERD, **TWO}, daemon.edits(pod, TWO, "a")).state()
    config = Path(json.loads(state)["bundle"]) / "config.json"
    config.unlink()
    os.mkfifo(config)
    ended = run(state, *socket_of(daemon.settings.control_path))
    assert (ended.code, ended.error.startswith("nri-rdma: OCI-STATE: ")) == (1, True)


@pytest.mark.parametrize("arguments", [["--help"], ["spec", "--timeout", "1", "-h"]])
def test_help_is_printed_and_is_no_error(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-IS", HOOK, *arguments], input=b"{}", capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: nri-rdma-hook verify|spec ")


@pytest.mark.parametrize(
    "arguments", [[], ["run"], ["verify", "--what"], ["verify", "--timeout"], ["verify", "--timeout=soon"]]
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-IS", HOOK, *arguments], input=b"{}", capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: nri-rdma-hook verify|spec ")


def spec_of(base: Mapping[str, Any], *flags: str) -> str:
    """The OCI configuration that `spec` makes of this one."""
    command = [sys.executable, "-IS", str(HOOK), "spec", *flags]
    return subprocess.run(command, input=json.dumps(base), capture_output=True, text=True, check=True).stdout


def test_spec_adds_the_hook_once_and_keeps_what_is_there() -> None:
    base = {"process": {"cwd": "/"}, "hooks": {"createRuntime": [{"path": "/usr/bin/other"}], "poststop": []}}
    once = spec_of(base, "--control-socket", "/run/x.sock")
    assert spec_of(json.loads(once), "--control-socket", "/run/x.sock") == once
    spec = json.loads(once)
    other, ours = spec["hooks"].pop("createRuntime")
    assert (spec, other) == ({"process": {"cwd": "/"}, "hooks": {"poststop": []}}, {"path": "/usr/bin/other"})
    assert ours == {
        "path": str(HOOK),
        "args": ["nri-rdma-hook", "verify", "--control-socket", "/run/x.sock"],
        "timeout": 10,
    }


def test_spec_drops_the_limits_that_ctr_puts_into_it_because_every_container_would_have_them() -> None:
    limits = [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]
    for process in ({"cwd": "/", "rlimits": limits}, {"cwd": "/", "rlimits": None}, {"cwd": "/"}):
        assert json.loads(spec_of({"process": process}))["process"] == {"cwd": "/"}
    assert "process" not in json.loads(spec_of({"ociVersion": "1.2.0"}))
    assert json.loads(spec_of({"process": None}))["process"] is None


def test_every_text_has_the_hook_at_the_one_place_outside_the_virtual_environment() -> None:
    place = "/usr/local/lib/nri-rdma/nri-rdma-hook"
    assert json.loads((PROJECT / "hooks/nri-rdma-guard.json").read_text())["hook"]["path"] == place
    module = place.replace("nri-rdma-hook", MODULE.name)
    for name in ("docs/guard.md", "hooks/README.md"):
        text = (PROJECT / name).read_text()
        assert f"ctr oci spec | {place} spec >" in text
        copied = f"install -D -m 755 /opt/nri-rdma/bin/nri-rdma-hook {place}"
        assert f"install -D -m 644 /opt/nri-rdma/bin/{MODULE.name} {module}\n    {copied}" in text, "the module first"


def test_spec_takes_null_for_no_hooks() -> None:
    """Go writes it for an empty pointer."""
    (ours,) = json.loads(spec_of({"hooks": None}))["hooks"]["createRuntime"]
    assert ours["path"] == str(HOOK)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"hooks": []}', '{"hooks": {"createRuntime": [1]}}', '{"process": [1]}', '{"process": "x"}']
)
def test_spec_refuses_what_is_no_configuration(text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-IS", HOOK, "spec"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert ONE_LINE.fullmatch(done.stderr)


def test_a_container_of_a_pod_that_ended_is_refused(daemon: InsideDaemon, tmp_path: Path) -> None:
    pod: Pod = daemon.start_pod("one", TWO)
    state = Container(tmp_path, {**CONTAINERD, **TWO}, daemon.edits(pod, TWO, "a")).state()
    daemon.stop_pod(pod)
    assert run(state, *socket_of(daemon.settings.control_path)).refused_with == "NOT-ATTACHED"


@pytest.mark.parametrize("file", [HOOK, MODULE], ids=lambda it: it.name)
def test_the_hook_is_written_for_python_3_9_and_imports_nothing_of_the_project(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    typing = {"typing", "collections.abc"}  # imported by no interpreter
    imported = {"nri_rdma_hook", "posix"} if file == HOOK else {"posix", "os", "json", "time", "_json", "_socket"}
    assert names - typing == {"sys", *imported}
    at_its_start = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert at_its_start == {"sys", *(imported & {"posix"})}


def test_the_hook_runs_with_the_systems_python() -> None:
    assert HOOK.read_text().startswith("#!/usr/bin/python3 -IS\n")
    assert HOOK.stat().st_mode & 0o111 == 0o111


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the hook's first line names /usr/bin/python3")
def test_a_container_that_asks_for_nothing_waits_less_than_25_ms(tmp_path: Path) -> None:
    """Beside the floor in the same run; the best of both, and more of them while others use the machine too."""
    state = json.dumps({"id": "x" * 64, "bundle": "/nowhere", "annotations": CONTAINERD}).encode()
    floors: list[float] = []
    hooks: list[float] = []
    while len(hooks) < 20 or (min(hooks) >= 25 and len(hooks) < 200):
        floors.append(_milliseconds(["/usr/bin/python3", "-I", "-S", "-c", "pass"], state))
        hooks.append(_milliseconds([str(HOOK), "verify"], state))
    print(f"python3 -I -S -c pass {min(floors):.1f} ms, the hook {min(hooks):.1f} ms")
    assert min(hooks) < 25
    assert min(hooks) < 3 * min(floors)


def _milliseconds(command: list[str], text: bytes) -> float:
    start = time.perf_counter()
    subprocess.run(command, input=text, check=True)
    return (time.perf_counter() - start) * 1e3

"""The OCI hook of podman and Docker: a program, a state on stdin, a config.json, and a daemon's socket or none."""

from __future__ import annotations

import ast
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.model.edits import ENV_PREFIXES
from tests.unit.hooks.ended import Ended

PROJECT = Path(__file__).resolve().parents[3]
HOOK = PROJECT / "hooks/nri-rdma-oci-hook"
MODULE = HOOK.with_name("nri_rdma_oci_hook.py")
HEARD = {"version": 1, "heard": True}
YES = {"version": 1, "memlock": None, "must": False}


class Daemon:
    """A socket that answers each question with the packets that `script` makes of it, and notes what it was asked."""

    def __init__(self, path: Path, script: Callable[[Any], Iterable[Any]]) -> None:
        self.path = path
        self.asked: list[Any] = []
        self.handed: list[list[str]] = []
        self._script = script
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(path))
        self._listening.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, suppress(BrokenPipeError):
                data, fds, _, _ = socket.recv_fds(connection, 1 << 17, 4)
                self.asked.append(json.loads(data))
                self.handed.append([str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in fds])
                for fd in fds:
                    os.close(fd)
                for packet in self._script(self.asked[-1]):
                    connection.send(packet if isinstance(packet, bytes) else json.dumps(packet).encode())


class Box:
    """A container that an OCI runtime has made: a process, and a config.json with the hooks of its CDI devices."""

    def __init__(self, folder: Path, path: Path, *wishes: Sequence[str]) -> None:
        self.folder = folder
        self.path = path
        self.wish = wishes[0]
        self.process = subprocess.Popen(["sleep", "1000"])
        args = [["nri-rdma-oci-hook", "attach", *wish, "--socket", str(path)] for wish in wishes]
        nodes = [("/dev/infiniband/uverbs5", 231, 197), ("/dev/null", 1, 3)]
        self.config: Any = {
            "hooks": {"createRuntime": [{"path": "/usr/bin/other"}, *({"path": str(HOOK), "args": it} for it in args)]},
            "linux": {
                "devices": [{"type": "c", "path": p, "major": x, "minor": y} for p, x, y in nodes],
                "cgroupsPath": "machine.slice:libpod:box",
            },
        }

    def run(self, verb: str = "attach", *flags: str, **state: Any) -> Ended:
        """Run the hook as an OCI runtime does."""
        (self.folder / "config.json").write_text(json.dumps(self.config))
        told = {"ociVersion": "1.0", "id": "box", "pid": self.process.pid, "bundle": str(self.folder), **state}
        own = flags or (self.wish if verb == "attach" else ())
        return run(json.dumps(told).encode(), verb, "--socket", str(self.path), *own)

    @property
    def memlock(self) -> tuple[int, int]:
        return resource.prlimit(self.process.pid, resource.RLIMIT_MEMLOCK)


def run(state: bytes, *arguments: str) -> Ended:
    before = time.monotonic()
    command = [sys.executable, "-I", "-S", str(HOOK), *arguments]
    done = subprocess.run(command, input=state, capture_output=True, check=False, timeout=30)
    assert done.stdout == b""
    return Ended(code=done.returncode, error=done.stderr.decode(), seconds=time.monotonic() - before)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path, tmp_path / "oci.sock", ("--device", "mlx5_5", "--mode", "exclusive", "--netdev", "rail5"))
    yield made
    made.process.kill()
    made.process.wait()


@pytest.fixture
def serve(box: Box) -> Iterator[Callable[[Callable[[Any], Iterable[Any]]], Daemon]]:
    """Start a daemon that answers so."""
    made: list[Daemon] = []

    def start(script: Callable[[Any], Iterable[Any]]) -> Daemon:
        made.append(Daemon(box.path, script))
        return made[-1]

    yield start
    for daemon in made:
        daemon.close()


Serve = Callable[[Callable[[Any], Iterable[Any]]], Daemon]


def test_the_daemon_is_asked_with_the_containers_namespace(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, YES))
    assert (box.run().code, box.run().error) == (0, "")
    assert daemon.asked[0] == {
        "version": 1,
        "ask": "attach",
        "id": "box",
        "pid": box.process.pid,
        "devices": [{"device": "mlx5_5", "mode": "exclusive", "netdev": "rail5"}],
        "nodes": [["/dev/infiniband/uverbs5", 231, 197]],
        "cgroup": "machine.slice:libpod:box",
        "indexes": {},
        "locks": False,
        "memlock": None,
        "bundle": str(box.folder),
    }
    assert daemon.handed[0] == [str(Path(f"/proc/{box.process.pid}/ns/net").readlink())]


def test_all_devices_of_the_container_are_asked_for_at_once_and_each_once(tmp_path: Path, serve: Serve) -> None:
    wish = ("--device", "mlx5_4")
    box = Box(tmp_path, tmp_path / "oci.sock", wish, ("--device", "mlx5_5"), wish)
    try:
        box.config["hooks"]["createRuntime"].append({"args": ["nri-rdma-oci-hook", "attach", "--socket", "/another"]})
        daemon = serve(lambda _: (HEARD, YES))
        assert box.run("attach", *wish).code == 0
        assert daemon.asked[0]["devices"] == [{"device": "mlx5_4"}, {"device": "mlx5_5"}]
    finally:
        box.process.kill()
        box.process.wait()


def test_a_container_whose_configuration_shows_no_hooks_asks_for_its_own_device(box: Box, serve: Serve) -> None:
    box.config = {}
    daemon = serve(lambda _: (HEARD, YES))
    assert box.run("attach", "--device", "mlx5_7", "--memlock", "5", "--hca-handles", "2").code == 0
    assert daemon.asked[0]["devices"] == [{"device": "mlx5_7", "memlock": "5", "hca-handles": "2"}]
    assert (daemon.asked[0]["nodes"], daemon.asked[0]["cgroup"]) == ([], "")


def test_the_end_of_a_container_is_told_by_its_id(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, YES))
    assert box.run("return", pid=0).code == 0
    assert (daemon.asked, daemon.handed) == ([{"version": 1, "ask": "return", "id": "box"}], [[]])


def test_the_limit_is_set_for_the_process_that_becomes_the_program(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, {"version": 1, "memlock": 4096, "must": True}))
    assert box.run().code == 0
    assert box.memlock == (4096, 4096)


def test_unlimited_is_what_the_kernel_calls_infinity(box: Box, serve: Serve) -> None:
    before = box.memlock
    serve(lambda _: (HEARD, {"version": 1, "memlock": 2**64 - 1, "must": False}))
    assert box.run().code == 0
    assert box.memlock in {before, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)}  # not every host may


def test_a_refusal_of_the_daemon_is_said_in_its_words(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, {"version": 1, "refusal": "nri-rdma: DEVICE-IN-USE: taken,\n here. Next: wait."}))
    assert box.run().error == "nri-rdma: DEVICE-IN-USE: taken, here. Next: wait.\n"


def test_without_a_daemon_a_container_is_refused_within_two_seconds(box: Box) -> None:
    ended = box.run()
    assert ended.refused_with == "DAEMON-ABSENT"
    assert 1.5 < ended.seconds < 10


def test_the_end_of_a_container_waits_less_for_a_daemon(box: Box) -> None:
    start, ended = box.run("unknown").seconds, box.run("return")
    assert ended.refused_with == "DAEMON-ABSENT"
    assert ended.seconds - start < 1.5


def test_a_daemon_that_comes_meanwhile_is_asked(box: Box, serve: Serve) -> None:
    timer = threading.Timer(0.5, lambda: serve(lambda _: (HEARD, YES)))
    timer.start()
    ended = box.run()
    timer.join()
    assert ended.code == 0, ended


def test_a_daemon_that_says_nothing_is_late(box: Box) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(box.path))
        silent.listen(8)
        ended = box.run()
    assert ended.refused_with == "DAEMON-LATE"
    assert ended.seconds < 10


def test_a_daemon_that_has_heard_is_given_time(box: Box, serve: Serve) -> None:
    def late(_: Any) -> Iterator[Any]:
        yield HEARD
        time.sleep(2.2)  # more than a daemon that says nothing has
        yield YES

    serve(late)
    assert box.run().code == 0


def test_a_daemon_that_ends_while_it_is_asked_is_asked_again(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, YES) if len(daemon.asked) > 1 else (HEARD,))
    assert box.run().code == 0
    assert len(daemon.asked) == 2


@pytest.mark.parametrize("packet", [b"nonsense", b"[]", b"\xff"])
def test_what_is_no_answer_refuses(box: Box, serve: Serve, packet: bytes) -> None:
    serve(lambda _: (HEARD, packet))
    assert box.run().refused_with == "OCI-STATE"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_not_use_the_socket_is_told_so(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, YES))
    state = json.dumps({"id": "box", "pid": os.getpid(), "bundle": "/nowhere"}).encode()
    command = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-IS", str(HOOK), "return"]
    done = subprocess.run([*command, "--socket", str(box.path)], input=state, capture_output=True, check=False)
    assert done.stderr.decode().startswith("nri-rdma: PRIVILEGE: ")
    assert done.returncode == 1


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b'{"id": "box"}', b'{"id": "box", "pid": 0}', b"\xff"])
def test_a_state_that_cannot_be_used_refuses(state: bytes) -> None:
    assert run(state, "attach", "--device", "mlx5_5").refused_with == "OCI-STATE"


def test_a_process_that_has_ended_refuses(box: Box) -> None:
    assert box.run(pid=_gone()).refused_with == "OCI-STATE"


@pytest.mark.parametrize(
    "config", [[], {"hooks": {"createRuntime": [1]}}, {"linux": {"devices": [{"path": "/dev/infiniband/x"}]}}]
)
def test_a_configuration_that_cannot_be_read_refuses(box: Box, config: Any) -> None:
    box.config = config
    assert box.run().refused_with in {"OCI-STATE", "INTERNAL"}


@pytest.mark.parametrize(
    "arguments", [[], ["steal"], ["attach"], ["attach", "--device"], ["attach", "--colour", "red"]]
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str]) -> None:
    ended = run(b"", *arguments)
    assert (ended.code, ended.error[:24]) == (2, "usage: nri-rdma-oci-hook")


def test_help_is_printed_and_is_no_error() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", str(HOOK), "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: nri-rdma-oci-hook attach")


def test_the_hook_tells_of_all_variables_that_the_daemon_may_set() -> None:
    values = {
        node.targets[0].id: node.value
        for node in ast.parse(MODULE.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert ast.literal_eval(values["VARIABLES"]) == ENV_PREFIXES


@pytest.mark.parametrize("file", [HOOK, MODULE], ids=lambda it: it.name)
def test_the_hook_is_written_for_python_3_9_and_imports_nothing_of_the_project(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module).partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names - {MODULE.stem} <= sys.stdlib_module_names
    assert "ctypes" not in names


def _gone() -> int:
    """The number of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def test_what_it_asks_is_json_as_the_library_reads_it(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, YES))
    path = "/dev/infiniband/" + json.dumps({"a": [1, -2, {"b": ["c", 'd"\\\n\u00e9\U0001f600']}], "": []})
    box.config = {"linux": {"devices": [{"path": path, "major": 1, "minor": 2}]}}
    assert box.run().code == 0
    assert daemon.asked[0]["nodes"] == [[path, 1, 2]]


@pytest.mark.parametrize(
    "text", ['{"id": "a"} x', '{"id": NaN, "pid": 1e400', '["a"', '{"a": "\x01"}', '"' + "[" * 9999]
)
def test_what_the_library_does_not_read_it_does_not_read(text: str) -> None:
    assert run(text.encode(), "attach", "--device", "mlx5_5").refused_with == "OCI-STATE"


# Annotations: precreate and createRuntime of podman

PREFIX = "rdma.noderesource.dev"
GIVEN = {
    "version": 1,
    "nodes": [["/dev/infiniband/uverbs2", 231, 194, 0o666, 0, 3]],
    "env": [["RDMA_DEVICES_0", "mlx5_2"], ["NCCL_IB_HCA", "=mlx5_2"]],
}


def podmans(**fields: Any) -> dict[str, Any]:
    """A config.json as podman hands it to precreate, as far as it matters."""
    return {
        "process": {"env": ["PATH=/bin", "UCX_NET_DEVICES=all"], "terminal": False, "noNewPrivileges": None},
        "mounts": [
            {"destination": "/run/.containerenv", "source": "/run/c/overlay-containers/ab12/userdata/.containerenv"}
        ],
        "annotations": {f"{PREFIX}/pod": "[{}]", PREFIX: "\u00e9", "other.example/pod": "1", f"{PREFIX}.x": "1"},
        "hooks": {"createRuntime": [{"path": "/bin/sh"}]},
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "network"}],
            "devices": [{"path": "/dev/infiniband/uverbs2", "type": "c", "major": 231, "minor": 9}],
            "resources": {"devices": [{"allow": False, "access": "rwm"}], "shares": 1.5},
        },
        **fields,
    }


def prepare(path: Path, spec: Any, *flags: str) -> tuple[Any, subprocess.CompletedProcess[bytes]]:
    """Run the precreate hook as podman does; the configuration that it answers (None: nothing), and how it ended."""
    data = spec if isinstance(spec, bytes) else json.dumps(spec).encode()
    command = [sys.executable, "-I", "-S", str(HOOK), "prepare", "--socket", str(path), *flags]
    done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=30)
    return json.loads(done.stdout) if done.stdout else None, done


def test_before_a_container_is_made_the_daemon_is_asked_for_its_annotations(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, GIVEN))
    prepare(box.path, podmans())
    assert daemon.asked == [
        {
            "version": 1,
            "ask": "prepare",
            "id": "ab12",
            "devices": [],
            "annotations": {f"{PREFIX}/pod": "[{}]", PREFIX: "\u00e9"},
            "nodes": [["/dev/infiniband/uverbs2", 231, 9]],
            "variables": ["UCX_NET_DEVICES"],
            "network": True,
            "links": [],
        }
    ]
    assert daemon.handed == [[]]


def test_it_is_made_with_what_the_daemon_answers_and_else_as_it_was(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, GIVEN))
    before = podmans()
    after, done = prepare(box.path, before)
    assert (done.returncode, done.stderr) == (0, b"")
    node = {
        "path": "/dev/infiniband/uverbs2",
        "type": "c",
        "major": 231,
        "minor": 194,
        "fileMode": 0o666,
        "uid": 0,
        "gid": 3,
    }
    rule = {"allow": True, "type": "c", "major": 231, "minor": 194, "access": "rwm"}
    env = ["RDMA_DEVICES_0=mlx5_2", "NCCL_IB_HCA==mlx5_2"]
    before["linux"]["devices"] = [node]
    before["linux"]["resources"]["devices"].append(rule)
    before["process"]["env"] += env
    told = json.loads(after["annotations"].pop(f"{PREFIX}.prepared"))
    assert told == {"RDMA_DEVICES_0": "mlx5_2", "NCCL_IB_HCA": "=mlx5_2"}
    assert after == before


def test_a_configuration_without_devices_rules_and_variables_gets_them(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, GIVEN))
    after, _ = prepare(box.path, podmans(process={}, linux={}))
    assert [it["path"] for it in after["linux"]["devices"]] == ["/dev/infiniband/uverbs2"]
    assert len(after["linux"]["resources"]["devices"]) == 1
    assert after["process"]["env"] == ["RDMA_DEVICES_0=mlx5_2", "NCCL_IB_HCA==mlx5_2"]


def test_a_container_without_a_network_of_its_own_says_so(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, GIVEN))
    prepare(box.path, podmans(linux={"namespaces": [{"type": "pid"}]}))
    assert daemon.asked[0]["network"] is False


def test_the_links_of_a_network_that_another_container_has_are_told(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, GIVEN))
    network = {"type": "network", "path": f"/proc/{box.process.pid}/ns/net"}
    prepare(box.path, podmans(linux={"namespaces": [network]}))
    assert sorted(daemon.asked[0]["links"]) == sorted(name for _, name in socket.if_nameindex())


def test_a_network_that_is_made_already_is_handed_over(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, GIVEN))
    prepare(box.path, podmans(linux={"namespaces": [{"type": "network", "path": "/proc/self/ns/net"}]}))
    assert daemon.handed == [[str(Path("/proc/self/ns/net").readlink())]]


def test_a_network_whose_container_has_ended_refuses(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, GIVEN))
    after, _ = prepare(box.path, podmans(linux={"namespaces": [{"type": "network", "path": "/proc/0/ns/net"}]}))
    assert shown(after).startswith("/nri-rdma: OCI-STATE: ")


def test_devices_of_cdi_hooks_are_told_too(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, GIVEN))
    args = ["nri-rdma-oci-hook", "attach", "--device", "mlx5_4", "--socket", str(box.path)]
    prepare(box.path, podmans(hooks={"createRuntime": [{"path": str(HOOK), "args": args}]}))
    assert daemon.asked[0]["devices"] == [{"device": "mlx5_4"}]


def test_the_prefix_is_what_the_hook_is_told(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, GIVEN))
    after, _ = prepare(box.path, podmans(), "--annotation-prefix", "other.example")
    assert daemon.asked[0]["annotations"] == {"other.example/pod": "1"}
    assert "other.example.prepared" in after["annotations"]


def shown(spec: Any) -> str:
    """What an OCI runtime shows of a hook that it cannot run; such a hook is the first."""
    path = spec["hooks"]["createRuntime"][0]["path"]
    assert not Path(path).exists()
    return str(path)


def test_a_refusal_is_the_path_of_a_hook_that_cannot_be_run(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, {"version": 1, "refusal": "nri-rdma: DEVICE-IN-USE: taken,\n by a/b. Next: wait."}))
    after, done = prepare(box.path, podmans())
    assert done.returncode == 0
    assert shown(after) == "/nri-rdma: DEVICE-IN-USE: taken, by a/b. Next: wait."
    assert after["hooks"]["createRuntime"][1:] == [{"path": "/bin/sh"}]
    assert (after["linux"], after["process"]) == (podmans()["linux"], podmans()["process"])
    assert f"{PREFIX}.prepared" not in after["annotations"]


def test_so_is_that_there_is_no_daemon(box: Box) -> None:
    before = time.monotonic()
    after, _ = prepare(box.path, podmans(hooks=None))
    assert shown(after).startswith("/nri-rdma: DAEMON-ABSENT: ")
    assert 1.5 < time.monotonic() - before < 10


@pytest.mark.parametrize(
    "answer", [{"version": 1}, {"version": 1, "nodes": [], "env": None}, {"nodes": [[1]], "env": []}]
)
def test_so_is_an_answer_that_cannot_be_used(box: Box, serve: Serve, answer: Any) -> None:
    serve(lambda _: (HEARD, answer))
    after, _ = prepare(box.path, podmans())
    assert shown(after).startswith(("/nri-rdma: OCI-STATE: ", "/nri-rdma: INTERNAL: "))


def test_so_is_a_configuration_that_is_not_podmans(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, GIVEN))
    for wrong in ({"mounts": None}, {"process": 5}, {"annotations": [1]}):
        after, _ = prepare(box.path, podmans(**wrong))
        assert shown(after).startswith(("/nri-rdma: OCI-STATE: ", "/nri-rdma: INTERNAL: "))


def test_so_is_an_annotation_that_is_too_long_for_a_question(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, GIVEN))
    after, _ = prepare(box.path, podmans(annotations={PREFIX: "x" * 200_000}))
    assert shown(after).startswith("/nri-rdma: ANNOTATION-SIZE: ")


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff"])
def test_what_is_no_configuration_ends_with_an_error(box: Box, data: bytes) -> None:
    after, done = prepare(box.path, data)
    assert (after, done.returncode) == (None, 1)
    assert done.stderr.startswith(b"nri-rdma: OCI-STATE: ")


def test_when_it_is_made_the_daemon_is_asked_to_attach_what_it_promised(box: Box, serve: Serve) -> None:
    daemon = serve(lambda asked: (HEARD, GIVEN if asked["ask"] == "prepare" else YES))
    box.config, _ = prepare(box.path, podmans())
    box.config["process"]["env"].append("NCCL_IB_HCA=mine")  # somebody replaced it after us
    assert box.run("attach-prepared", "--annotation-prefix", PREFIX).code == 0
    assert daemon.asked[1] == {
        "version": 1,
        "ask": "attach",
        "id": "box",
        "pid": box.process.pid,
        "devices": [],
        "annotations": {f"{PREFIX}/pod": "[{}]", PREFIX: "\u00e9"},
        "prepared": {"RDMA_DEVICES_0": "mlx5_2", "NCCL_IB_HCA": "=mlx5_2"},
        "variables": ["UCX_NET_DEVICES", "NCCL_IB_HCA"],
        "nodes": [["/dev/infiniband/uverbs2", 231, 194]],
        "cgroup": "",
        "indexes": {},
        "locks": False,
        "memlock": None,
        "bundle": str(box.folder),
    }
    assert daemon.handed[1] == [str(Path(f"/proc/{box.process.pid}/ns/net").readlink())]


def test_the_memlock_that_the_engine_asks_for_is_told(box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, YES))
    others = {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1024}
    box.config["process"] = {"rlimits": [others, {"type": "RLIMIT_MEMLOCK", "soft": 65536, "hard": 1 << 20}]}
    assert box.run().code == 0
    assert daemon.asked[0]["memlock"] == 65536


def test_a_container_that_nothing_prepared_is_refused(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, YES))
    box.config = podmans()
    ended = box.run("attach-prepared", "--annotation-prefix", PREFIX)
    assert (ended.refused_with, "nri-rdma install podman" in ended.error) == ("OCI-STATE", True)


def test_a_configuration_goes_through_unchanged(box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, {"version": 1, "nodes": [], "env": []}))
    values: list[Any] = [None, True, False, 0, 1.5, [], {}, '\u00e9\u2028"', [[None, {"a": False}]]]
    after, _ = prepare(box.path, podmans(hostname=values))
    assert json.dumps(after["hostname"]) == json.dumps(values)  # true is not 1 there


# `create` in front of an OCI runtime, for Docker


class Bundle:
    """A container that Docker is about to have made, and an OCI runtime that tells how it was called."""

    def __init__(self, folder: Path, path: Path, **fields: Any) -> None:
        self.folder = folder / "bundle"
        self.folder.mkdir()
        self.path = path
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps(podmans(mounts=[], **fields)))
        self.log = folder / "log.json"
        self.told = folder / "told"
        self.runtime = folder / "runtime"
        self.runtime.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.told}\nexit 7\n')
        self.runtime.chmod(0o755)
        self.words = ["--root", "/r", "--log", str(self.log), "--log-format", "json"]
        self.words += ["create", "--bundle", str(self.folder), "--pid-file", "/p", "ab12"]

    def create(self, *words: str) -> Ended:
        own = ("--annotation-prefix", PREFIX, "--socket", str(self.path))
        return run(b"the container's input", "create", *own, "--", str(self.runtime), *(words or self.words))

    @property
    def spec(self) -> Any:
        return json.loads(self.config.read_text())


def test_a_container_is_made_with_its_devices_and_with_the_two_hooks(tmp_path: Path, box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, GIVEN))
    bundle = Bundle(tmp_path, box.path)
    bundle.config.chmod(0o640)
    before = bundle.spec
    assert (bundle.create().code, bundle.told.read_text().splitlines()) == (7, bundle.words)
    assert daemon.asked[0]["id"] == "ab12"
    prepared, _ = prepare(box.path, podmans())
    after = bundle.spec
    flags = ["--annotation-prefix", PREFIX, "--socket", str(box.path)]
    assert after["hooks"] == {
        "createRuntime": [
            *before["hooks"]["createRuntime"],
            {"path": str(HOOK), "args": ["nri-rdma-oci-hook", "attach-prepared", *flags], "timeout": 15},
        ],
        "poststop": [{"path": str(HOOK), "args": ["nri-rdma-oci-hook", "return", *flags[2:]], "timeout": 15}],
    }
    same = {**prepared, "hooks": None, "mounts": None}
    assert {**after, "hooks": None, "mounts": None} == same, "what precreate adds"
    assert bundle.config.stat().st_mode & 0o777 == 0o640
    assert [it.name for it in bundle.folder.iterdir()] == ["config.json"]


def test_a_configuration_that_is_no_file_is_refused_at_once(tmp_path: Path, box: Box) -> None:
    bundle = Bundle(tmp_path, box.path)
    bundle.config.unlink()
    os.mkfifo(bundle.config)
    ended = bundle.create()
    assert (ended.code, ended.error.startswith("nri-rdma: OCI-STATE: ")) == (1, True)
    state = {"id": "box", "pid": box.process.pid, "bundle": str(bundle.folder)}
    ended = run(json.dumps(state).encode(), "attach", "--device", "mlx5_5", "--socket", str(box.path))
    assert (ended.code, ended.error.startswith("nri-rdma: OCI-STATE: ")) == (1, True)
    assert "config.json" in ended.error


@pytest.mark.parametrize("form", [["-b", "{}"], ["--bundle={}"], ["-b={}"]])
def test_the_bundle_is_found_however_it_is_named(tmp_path: Path, box: Box, serve: Serve, form: list[str]) -> None:
    serve(lambda _: (HEARD, GIVEN))
    bundle = Bundle(tmp_path, box.path)
    bundle.create("create", *(it.format(bundle.folder) for it in form), "ab12")
    assert "poststop" in bundle.spec["hooks"]


def test_the_hooks_that_it_adds_are_those_that_it_runs_by(tmp_path: Path, box: Box, serve: Serve) -> None:
    daemon = serve(lambda asked: (HEARD, GIVEN if asked["ask"] == "prepare" else YES))
    bundle = Bundle(tmp_path, box.path)
    bundle.create()
    state = {"id": "ab12", "pid": box.process.pid, "bundle": str(bundle.folder)}
    for stage in ("createRuntime", "poststop"):
        _, *args = bundle.spec["hooks"][stage][-1]["args"]
        assert run(json.dumps(state).encode(), *args).code == 0
    assert [it["ask"] for it in daemon.asked] == ["prepare", "attach", "return"]


def test_who_only_mentions_the_prefix_is_made_as_it_is(tmp_path: Path, box: Box) -> None:
    bundle = Bundle(tmp_path, box.path, annotations={f"{PREFIX}.x": PREFIX})
    before = bundle.config.read_bytes()
    assert (bundle.create().code, bundle.told.read_text().splitlines()) == (7, bundle.words)
    assert bundle.config.read_bytes() == before


def told(log: Path) -> str:
    """What containerd's shim shows of an OCI runtime that has failed."""
    return str([it["msg"] for it in map(json.loads, log.read_text().splitlines()) if it["level"] == "error"][-1])


def test_a_refusal_is_in_the_log_of_the_oci_runtime_and_nothing_is_made(tmp_path: Path, box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, {"version": 1, "refusal": "nri-rdma: DEVICE-IN-USE: taken,\n by a/b. Next: wait."}))
    bundle = Bundle(tmp_path, box.path)
    bundle.log.write_text('{"level": "warning", "msg": "before"}\n')
    before = bundle.config.read_bytes()
    ended = bundle.create()
    assert (ended.code, bundle.told.exists(), bundle.config.read_bytes()) == (1, False, before)
    sentence = "nri-rdma: DEVICE-IN-USE: taken, by a/b. Next: wait."
    assert (told(bundle.log), ended.error) == (sentence, f"{sentence}\n")


def test_a_refusal_without_a_log_is_on_stderr(tmp_path: Path, box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, {"version": 1, "refusal": "nri-rdma: DEVICE-IN-USE: taken."}))
    ended = Bundle(tmp_path, box.path).create("create", "-b", str(tmp_path / "bundle"), "ab12")
    assert (ended.code, ended.error) == (1, "nri-rdma: DEVICE-IN-USE: taken.\n")


@pytest.mark.parametrize("text", [None, "[]", '{"annotations": {"rdma.noderesource.dev": "1"}}'])
def test_a_configuration_that_cannot_be_used_refuses(tmp_path: Path, box: Box, text: str | None) -> None:
    bundle = Bundle(tmp_path, box.path)
    bundle.config.unlink() if text is None else bundle.config.write_text(text)
    assert bundle.create().refused_with in {"OCI-STATE", "INTERNAL"}
    assert not bundle.told.exists()


def test_a_container_that_asks_is_not_restored_from_a_checkpoint(tmp_path: Path, box: Box, serve: Serve) -> None:
    daemon = serve(lambda _: (HEARD, GIVEN))
    bundle = Bundle(tmp_path, box.path)
    ended = bundle.create("restore", "--bundle", str(bundle.folder), "ab12")
    assert (ended.refused_with, bundle.told.exists(), daemon.asked) == ("OCI-STATE", False, [])


def test_one_that_does_not_ask_is_restored(tmp_path: Path, box: Box) -> None:
    bundle = Bundle(tmp_path, box.path, annotations=None)
    assert bundle.create("restore", "--bundle", str(bundle.folder), "ab12").code == 7


def test_an_oci_runtime_that_is_not_there_is_told(tmp_path: Path, box: Box, serve: Serve) -> None:
    serve(lambda _: (HEARD, GIVEN))
    bundle = Bundle(tmp_path, box.path)
    bundle.runtime.unlink()
    assert bundle.create().refused_with == "OCI-STATE"
    assert str(bundle.runtime) in told(bundle.log)


@pytest.mark.parametrize("arguments", [[], ["--"], ["--colour", "red", "--", "runc", "create", "a"]])
def test_create_without_a_runtime_is_a_usage_error(arguments: list[str]) -> None:
    assert run(b"", "create", *arguments).code == 2

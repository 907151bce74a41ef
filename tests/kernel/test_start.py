"""Nothing beside the job decides whether the daemon starts: pods are served, and what is wrong is told."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any  # Any: the daemon's JSON document

import pytest

from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import RpcError
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.rig.node import load
from tests.rig.scrape import free_port, scrape
from tests.rig.systree import build_tree

pytestmark = pytest.mark.root
PROJECT = Path(__file__).resolve().parents[2]
SOON = 15.0
SHARED = '[pools.rails]\nmodes = ["shared"]\nselect = { device = "rxe0" }\n'


@dataclass
class Node:
    """A node with a runtime, and a daemon that has started and whose pods are known."""

    run: Path
    runtime: FakeRuntime
    flags: list[str]
    pid: int = 0

    @property
    def log(self) -> str:
        return (self.run / "log").read_text()

    def status(self) -> dict[str, Any]:
        return ask_status(self.run / "state/control.sock")

    def check(self) -> tuple[int, str]:
        """The exit code and the lines of `status --check`."""
        done = subprocess.run(
            [sys.executable, "-m", "nri_rdma", "status", "--check", "--state-dir", self.run / "state"],
            cwd=PROJECT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def troubles(self) -> dict[str, str]:
        return {it["part"]: it["why"] for it in self.status()["troubles"]}

    def start(self, name: str, annotations: dict[str, str] | None = None) -> set[str]:
        """Start a pod and its container; the device nodes that it gets. Raises RpcError."""
        pod = nri.PodSandbox(id=name, name=name, uid=name, namespace="default", annotations=annotations or {})
        self.runtime.run_pod_sandbox(pod)
        answer = self.runtime.create_container(pod, nri.Container(id=f"{name}-c", pod_sandbox_id=name, name="main"))
        return {device.path for device in answer.adjust.linux.devices}

    def refusal(self, name: str, annotations: dict[str, str]) -> str:
        with pytest.raises(RpcError) as refused:
            self.start(name, annotations)
        return str(refused.value)


def asks(pool: str = "default") -> dict[str, str]:
    return {"rdma.noderesource.dev/pod": f"[{{pool: {pool}, mode: shared}}]"}


@contextmanager
def started(tmp_path: Path, *flags: str, config: str | bytes | None = None, **variables: str) -> Iterator[Node]:
    build_tree(load("small"), tmp_path / "sys")
    with TemporaryDirectory(prefix="nri-") as folder, FakeRuntime(Path(folder) / "nri.sock") as runtime:
        run = Path(folder)
        given = [
            *("--nri-socket", f"{run}/nri.sock", "--sysfs-root", f"{tmp_path}/sys", "--dev-root", str(tmp_path)),
            *("--cgroup-root", str(tmp_path), "--state-dir", f"{run}/state", "--cdi-dirs", f"{run}/cdi"),
        ]
        if config is not None:
            (run / "config.toml").write_bytes(config if isinstance(config, bytes) else config.encode())
            given += ["--config", f"{run}/config.toml"]
        environment = {**os.environ, **variables}
        with (run / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "nri_rdma", "run", *given, *flags], cwd=PROJECT, stderr=log, env=environment
            )
        try:
            node = Node(run, runtime, given)
            try:
                runtime.accept(SOON)
            except (OSError, AssertionError, TimeoutError):
                pytest.fail(f"the daemon did not come; its log:\n{node.log}")
            wait_until(
                lambda: "CDI specs were read" in node.log, lambda: f"the specs to be read; its log:\n{node.log}", SOON
            )
            node.pid = process.pid
            yield node
        finally:
            process.terminate()
            assert process.wait(SOON) == 0


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "OTEL_TRACES_EXPORTER = 'jaeger' cannot be used"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL = 'http/json' cannot be used",
        ),
        (
            {
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "zip",
            },
            "zip",
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"}, "many"),
    ],
)
def test_a_wrong_variable_of_opentelemetry_takes_no_pod_its_devices(
    tmp_path: Path, variables: dict[str, str], words: str
) -> None:
    port = free_port()
    with started(tmp_path, "--metrics-address", f"127.0.0.1:{port}", **variables) as node:
        assert "/dev/infiniband/rdma_cm" in node.start("asks", asks())
        assert words in node.troubles()["traces"]
        assert words in node.log
        code, lines = node.check()
        assert (code, words in lines) == (1, True)
        assert scrape(port).value("nri_rdma_troubles", part="traces") == 1
        assert scrape(port).value("nri_rdma_troubles", part="settings") == 0


def test_a_collector_without_its_extra_takes_no_pod_its_devices(tmp_path: Path) -> None:
    """As installed by the README's first command: no exporter is there."""
    without(tmp_path / "lacks", "opentelemetry.exporter")
    variables = {"OTEL_TRACES_EXPORTER": "otlp", "PYTHONPATH": str(tmp_path / "lacks")}
    with started(tmp_path, **variables) as node:
        assert "/dev/infiniband/rdma_cm" in node.start("asks", asks())
        assert "its extra `otlp`" in node.troubles()["traces"]


def test_a_pool_of_claims_without_its_extra_is_told_and_others_are_served(tmp_path: Path) -> None:
    without(tmp_path / "lacks", "kubernetes")
    config = f'{SHARED}[pools.claimed]\nmodes = ["shared"]\nselect = {{ device = "rxe1" }}\ndoor = "claims"\n'
    with started(tmp_path, config=config, PYTHONPATH=str(tmp_path / "lacks")) as node:
        assert "/dev/infiniband/rdma_cm" in node.start("asks", asks("rails"))
        why = node.troubles()["claims"]
        assert "pool claimed" in why
        assert "extra `claims`" in why
        assert node.check()[0] == 1


def without(folder: Path, package: str) -> None:
    """Write a start of Python that finds no such package."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")


def test_a_metrics_port_that_is_taken_takes_no_pod_its_devices(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with started(tmp_path, "--metrics-address", address) as node:
            assert "/dev/infiniband/rdma_cm" in node.start("asks", asks())
            assert "Address already in use" in node.status()["metrics"]["error"]
            assert "metrics are not served" in node.check()[1]


@pytest.mark.parametrize(
    ("flags", "variables", "config", "words"),
    [
        (("--metrics-address", "localhost:9178"), {}, None, "metrics_address = 'localhost:9178'"),
        ((), {"NRI_RDMA_BARRIER_WAIT": "fast"}, None, "barrier_wait = 'fast'"),
        ((), {}, f"nice = 5\n{SHARED.replace('rails', 'default')}", "nice = 5"),
        ((), {}, f'metrics_adress = "x"\n{SHARED.replace("rails", "default")}', "unknown setting metrics_adress"),
        (("--log-file", "/proc/nowhere/log"), {}, None, "/proc/nowhere"),
        (("--control-socket", f"/tmp/{'long' * 40}"), {}, None, "path too long"),
    ],
)
def test_a_setting_beside_the_job_takes_no_pod_its_devices(
    tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str], config: str | None, words: str
) -> None:
    with started(tmp_path, *flags, config=config, **variables) as node:
        assert "/dev/infiniband/rdma_cm" in node.start("asks", asks())
        assert words in node.log
        if "--control-socket" not in flags:  # else nobody can ask
            assert any(words in why for why in node.troubles().values())
            assert node.check()[0] == 1


def test_a_pool_that_cannot_be_read_refuses_its_pods_and_no_others(tmp_path: Path) -> None:
    config = f'{SHARED}[pools.broken]\nmodes = ["shraed"]\nselect = {{ device = "rxe1" }}\n'
    with started(tmp_path, config=config) as node:
        assert node.start("plain") == set()
        assert "/dev/infiniband/rdma_cm" in node.start("asks", asks("rails"))
        refusal = node.refusal("broken", asks("broken"))
        assert "nri-rdma: POOL-CLOSED: pool broken is closed" in refusal
        assert "config.toml:5" in refusal
        assert "shraed" in node.check()[1]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[pools.rails", "config.toml"),
        (b"\xff\xfe", "cannot be used"),
        (f'{SHARED}[[rules]]\nnamespace = ["a"]\n', "namespace"),
        (f'{SHARED}[[rule]]\nnamespaces = ["a"]\n', "unknown setting rule"),
        (f"sandboxed_handlers = 3\n{SHARED}", "sandboxed_handlers = 3"),
    ],
)
def test_what_decides_who_gets_what_and_cannot_be_read_refuses_those_who_ask(
    tmp_path: Path, config: str | bytes, words: str
) -> None:
    with started(tmp_path, config=config) as node:
        assert node.start("plain") == set()
        for pool in ("rails", "default"):
            refusal = node.refusal(pool, asks(pool))
            assert "nri-rdma: POOL-CLOSED: " in refusal
            assert words in refusal
        code, lines = node.check()
        assert (code, words in lines) == (1, True)


def test_a_named_file_that_is_not_there_refuses_those_who_ask_until_it_is(tmp_path: Path) -> None:
    with started(tmp_path, "--config", "/nowhere/config.toml") as node:
        assert node.start("plain") == set()
        assert "/nowhere/config.toml" in node.refusal("asks", asks())


def test_a_mended_file_is_taken_by_sighup(tmp_path: Path) -> None:
    with started(tmp_path, config="[pools.rails") as node:
        node.refusal("before", asks("rails"))
        (node.run / "config.toml").write_text(SHARED)
        os.kill(node.status()["daemon"]["pid"], 1)
        wait_until(lambda: not node.troubles(), "the file to be taken", SOON)
        assert "/dev/infiniband/rdma_cm" in node.start("after", asks("rails"))


def test_a_daemon_without_descriptors_for_grpc_lives_on(tmp_path: Path) -> None:
    """grpc ends the process where it finds none for itself: it has them before the daemon counts as ready."""
    config = f'{SHARED}door = "resource"\nresource = "rdma/hca"\nshares = 2\n'
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(SOON)
        plugins = tmp_path / "plugins"
        plugins.mkdir()
        given = {"config": config, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with started(tmp_path, "--device-plugin-dir", str(plugins), **given) as node:
            assert manager.recv(64) == b"READY=1"
            assert "cygrpc" in Path(f"/proc/{node.pid}/maps").read_text()
            used = len(list(Path(f"/proc/{node.pid}/fd").iterdir()))
            soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (used, hard))
            (plugins / "kubelet.sock").touch()  # the kubelet is there: its resources are registered
            wait_until(lambda: "not served" in node.log, lambda: f"a try to register; its log:\n{node.log}", 2 * SOON)
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (soft, hard))
            assert node.start("plain") == set()


def test_a_daemon_that_can_start_no_thread_says_so_in_a_line(tmp_path: Path) -> None:
    done = subprocess.run(
        ["prlimit", f"--as={300 << 20}", sys.executable, "-m", "nri_rdma", "run", "--state-dir", tmp_path / "state",
         "--nri-socket", tmp_path / "nri.sock"],
        cwd=PROJECT, capture_output=True, text=True, check=False, timeout=SOON,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "nri-rdma: NO-THREAD: " in done.stderr

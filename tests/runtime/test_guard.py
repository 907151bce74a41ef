"""A pod that asks starts with its devices or not at all, whoever is dead: the guard, and what is told without it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from nri_rdma.doors.control.daemon_client import ask_trace
from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.daemon import PROJECT, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import look, tree_number
from tests.rig.fabric import Fabric
from tests.rig.guard import GUARDED, HOOK, MODULE, write_definition
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

ASKS = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}}]"}


@pytest.fixture
def guarded(runtime: Runtime) -> Iterator[str]:
    """The runtime handler whose containers are guarded. Daemons of later tests have not heard of the guard."""
    state = runtime.run / "nri-rdma"
    if not runtime.release.is_crio:
        yield GUARDED
    else:
        write_definition(runtime.run / "hooks", runtime.run)
        runtime.restart()
        yield ""
        (runtime.run / "hooks/nri-rdma-guard.json").unlink()
        runtime.restart()
    (state / "guard").unlink(missing_ok=True)


def test_a_container_of_a_dead_daemons_pod_is_refused_with_one_line_and_starts_when_it_is_back(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri
) -> None:
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("asks", annotations=ASKS, runtime_handler=guarded)
        daemon.kill()
        text = refused(cri, pod, "main")
        assert "nri-rdma: DAEMON-ABSENT: the daemon is gone: " in text
        assert "default/asks, container main. Next: start it" in text
        daemon.start()
        assert nodes_of(cri, run(cri, pod, "main", attempt=1)) == expected(node)
        guard = daemon.status()["guard"]
        assert (guard["active"], guard["asked"], guard["refused"]) == ("createRuntime hook", 1, 0)
        assert guard["unguarded"] == []
        cri.delete_pod(pod)


def test_a_pod_that_started_while_the_daemon_was_dead_gets_its_devices_when_it_is_back(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri
) -> None:
    """No container of it ran bare, so nothing is lost."""
    with Daemon(runtime, node) as daemon:
        daemon.kill()
        pod = cri.run_pod("early", annotations=ASKS, runtime_handler=guarded)
        assert "nri-rdma: DAEMON-ABSENT: " in refused(cri, pod, "main")
        daemon.start()
        wait_until(lambda: [it["state"] for it in daemon.status()["sandboxes"]] == ["attached"], "the attach to end")
        assert nodes_of(cri, run(cri, pod, "main", attempt=1)) == expected(node)
        assert daemon.status()["unserved_count"] == 0
        cri.delete_pod(pod)


def test_a_pod_that_asks_for_nothing_starts_whoever_is_dead(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri
) -> None:
    with Daemon(runtime, node) as daemon:
        daemon.kill()
        plain = cri.run_pod("plain", annotations={"example.com/key": "value"}, runtime_handler=guarded)
        empty = cri.run_pod("empty", annotations={"rdma.noderesource.dev/pod": "[]"}, runtime_handler=guarded)
        for pod in (plain, empty):
            assert nodes_of(cri, run(cri, pod, "main")) == {}
            cri.delete_pod(pod)


def test_a_daemon_that_hangs_refuses_by_its_silence(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri
) -> None:
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("asks", annotations=ASKS, runtime_handler=guarded)
        with stopped(daemon):
            assert "nri-rdma: DAEMON-LATE: the daemon did not answer in 2 s" in refused(cri, pod, "main")
        daemon.wait_synchronized(times=2)
        assert nodes_of(cri, run(cri, pod, "main", attempt=1)) == expected(node)
        cri.delete_pod(pod)


def test_a_container_that_was_made_while_the_daemon_hung_is_refused_though_it_lives_again(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri
) -> None:
    """Who is late is dropped, and the runtime goes on without: NRI fails open."""
    skip_where_hooks_run_at_the_creation(runtime)
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("asks", annotations=ASKS, runtime_handler=guarded)
        with stopped(daemon):
            bare = cri.create_container(pod, "main")
        text = refusal(cri, bare)
        assert "nri-rdma: NOT-SERVED: the container was made without /dev/infiniband/uverbs3, " in text
        # The guard asks at once: the daemon may read that question before the runtime's older one.
        causes = (
            "nri-rdma's answer came too late for the runtime, or somebody changed it since",
            "the runtime did not ask nri-rdma",
        )
        assert any(cause in text for cause in causes), text
        assert ", default/asks, container main" in text
        daemon.wait_synchronized(times=2)
        assert daemon.status()["guard"]["refused"] == 1
        assert nodes_of(cri, run(cri, pod, "main", attempt=1)) == expected(node)
        cri.delete_pod(pod)


def test_a_container_whose_pods_attach_still_runs_is_refused_and_starts_later(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri
) -> None:
    skip_where_hooks_run_at_the_creation(runtime)
    with GatedDaemon(runtime, node, "after move-netdev") as daemon:
        pod = cri.run_pod("slow", annotations=ASKS, runtime_handler=guarded)
        with pytest.raises(CriError, match="nri-rdma: NOT-READY: network is not ready: "):
            cri.create_container(pod, "main", retries=False)
        with stopped(daemon):
            bare = cri.create_container(pod, "main", attempt=1)
        text = refusal(cri, bare)
        assert "nri-rdma: NOT-READY: network is not ready: the attach of this pod still runs, default/slow" in text
        daemon.open_gate()
        daemon.wait_synchronized(times=2)
        wait_until(lambda: [it["state"] for it in daemon.status()["sandboxes"]] == ["attached"], "the attach to end")
        assert nodes_of(cri, run(cri, pod, "main", attempt=2)) == expected(node)
        cri.delete_pod(pod)


def test_a_container_that_an_earlier_daemon_answered_for_starts_under_the_next_one(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri
) -> None:
    skip_where_hooks_run_at_the_creation(runtime)
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("asks", annotations=ASKS, runtime_handler=guarded)
        container = cri.create_container(pod, "main")
        daemon.kill()
        daemon.start()
        cri.start(container)
        assert nodes_of(cri, container) == expected(node)
        cri.delete_pod(pod)


def test_a_container_that_ends_again_and_again_is_guarded_each_time(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri
) -> None:
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("loops", annotations=ASKS, runtime_handler=guarded)
        for attempt in range(3):
            container = run(cri, pod, "main", attempt=attempt)
            assert nodes_of(cri, container) == expected(node)
            cri.stop_container(container)
            cri.remove_container(container)
        assert daemon.status()["guard"]["asked"] == 3
        cri.delete_pod(pod)


def test_without_the_guard_the_same_pod_starts_bare_and_is_told(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("half", annotations=ASKS)
        assert nodes_of(cri, cri.run_container(pod, "served")) == expected(node)
        assert daemon.status()["guard"]["unguarded"] == ["default/half, container served"]
        daemon.kill()
        assert nodes_of(cri, cri.run_container(pod, "bare")) == {}
        early = cri.run_pod("early", annotations={"rdma.noderesource.dev": "1"})
        assert nodes_of(cri, cri.run_container(early, "main")) == {}
        daemon.start()
        wait_until(lambda: len(daemon.status()["unserved"]) == 2, "the report")
        why = {item["pod"]: item["why"] for item in daemon.status()["unserved"]}
        assert why == {
            "default/half": "container bare was made while nri-rdma was away",
            "default/early": "its containers were made while nri-rdma was away",
        }
        assert daemon.status()["unserved_count"] == 2
        spans = [
            span for span in ask_trace(daemon.state_dir / "control.sock", "")["spans"] if span["name"] == "unserved"
        ]
        assert {span["attributes"]["k8s.pod.name"]: span["attributes"]["reason"] for span in spans} == why
        assert daemon.log.count("pod runs without what it asks for") == 2
        cri.delete_pod(pod)
        cri.delete_pod(early)
        assert daemon.status()["unserved"] == []


def test_containers_start_at_every_moment_of_an_upgrade_and_of_the_removal(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, tmp_path: Path
) -> None:
    """In the order of docs/guard.md. The hook taken away first is what that order prevents."""
    names = (f"plain-{number}" for number in count())

    def starts() -> bool:
        pod = runtime.cri.run_pod(next(names), runtime_handler=guarded)
        try:
            return nodes_of(runtime.cri, run(runtime.cri, pod, "main")) == {}
        except CriError as error:
            assert "nri-rdma-hook" in error.text
            return False
        finally:
            runtime.cri.delete_pod(pod)

    hook = tmp_path / "nri-rdma-hook"
    shutil.copy(MODULE, tmp_path)
    shutil.copy(HOOK, hook)
    told = runtime.run / ("hooks/nri-rdma-guard.json" if runtime.release.is_crio else "guarded.json")
    configured = told if runtime.release.is_crio else Path(runtime.command()[2])
    before, configuration = told.read_text(), configured.read_text()
    told.write_text(before.replace(str(HOOK), str(hook)))
    runtime.restart()
    try:
        with Daemon(runtime, node) as daemon:
            pod = runtime.cri.run_pod("asks", annotations=ASKS, runtime_handler=guarded)
            assert nodes_of(runtime.cri, run(runtime.cri, pod, "main")) == expected(node)
            daemon.stop()  # an upgrade: the old program ends,
            assert starts()
            for file in (MODULE, HOOK):  # each file of the hook is replaced in one step, the module first,
                shutil.copy(file, tmp_path / "new")
                (tmp_path / "new").rename(tmp_path / file.name)
                assert starts()
            daemon.start()  # and the new program starts
            assert nodes_of(runtime.cri, run(runtime.cri, pod, "second")) == expected(node)
            runtime.cri.delete_pod(pod)
            for file in (hook, tmp_path / MODULE.name):
                file.rename(tmp_path / "away")
                assert not starts(), f"{file.name} was taken away while the runtime still had the hook"
                (tmp_path / "away").rename(file)
            _take_out(configured)  # the removal: first the runtime forgets the guard,
            runtime.restart()
            assert starts()
        assert starts()  # then the daemon ends,
        hook.unlink()  # and the files go
        told.unlink(missing_ok=True)
        assert starts()
    finally:
        configured.write_text(configuration)
        told.write_text(before)
        runtime.restart()


def _take_out(configured: Path) -> None:
    """What the runtime was told of the guard: CRI-O's definition, or two keys of containerd's configuration."""
    if configured.suffix == ".json":
        configured.unlink()
        return
    lines = configured.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("base_runtime_spec = ", "pod_annotations = "))]
    assert len(kept) == len(lines) - 2
    configured.write_text("".join(kept))


def test_the_guard_changes_no_limit_of_a_container(host_equal: None, runtime: Runtime, guarded: str, cri: Cri) -> None:
    """What `ctr oci spec` prints has RLIMIT_NOFILE 1024: with that, programs of the whole node could open no more."""
    if runtime.release.is_crio:
        pytest.skip("CRI-O has no base_runtime_spec: its containers are the same with and without the guard's hook")
    plain, under_guard = limits_of(cri, "plain", ""), limits_of(cri, "guarded", guarded)
    assert under_guard == plain
    assert plain[0].startswith("Limit ")
    assert any(line.startswith("Max open files ") for line in plain)


class GatedDaemon(Daemon):
    """One whose attach waits at a step boundary, until the gate is open."""

    def __init__(self, runtime: Runtime, node: Fabric, place: str) -> None:
        super().__init__(runtime, node)
        self._gate = runtime.run / "gate"
        self._place = place

    def start_process(self) -> None:
        """Starts it with the gate closed."""
        self._gate.unlink(missing_ok=True)
        self._mark_log()
        command = [sys.executable, "-m", "tests.rig.gated_daemon", str(self._gate), self._place, *self._flags]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=PROJECT, stderr=log, stdin=subprocess.DEVNULL)

    def open_gate(self) -> None:
        """Lets the attach go on."""
        Path(self._gate).touch()

    def stop(self) -> None:
        """With an open gate: it waits for its workers."""
        self.open_gate()
        super().stop()


def skip_where_hooks_run_at_the_creation(runtime: Runtime) -> None:
    """CRI-O has the OCI runtime make the container within CreateContainer: nothing can happen before the guard asks."""
    if runtime.release.is_crio:
        pytest.skip("nothing lies between the runtime's question and the guard's")


@contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    """It lives and does nothing."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def run(cri: Cri, pod: Sandbox, name: str, *, attempt: int = 0) -> Container:
    """A container that runs."""
    container = cri.create_container(pod, name, attempt=attempt)
    cri.start(container)
    return container


def refused(cri: Cri, pod: Sandbox, name: str) -> str:
    """The text with which a container is refused, by CreateContainer or by StartContainer."""
    with pytest.raises(CriError) as caught:
        run(cri, pod, name)
    return caught.value.text


def refusal(cri: Cri, container: Container) -> str:
    """The text with which a container that was made does not start."""
    with pytest.raises(CriError) as caught:
        cri.start(container)
    return caught.value.text


def limits_of(cri: Cri, name: str, handler: str) -> list[str]:
    """The limits of a container's first process and of one that is started in it later, as the kernel has them."""
    pod = cri.run_pod(name, runtime_handler=handler)
    result = cri.exec(run(cri, pod, "main"), ["cat", "/proc/1/limits", "/proc/self/limits"])
    assert result.exit_code == 0, result.stderr
    cri.delete_pod(pod)
    return result.stdout.splitlines()


def nodes_of(cri: Cri, container: Container) -> dict[str, str]:
    """What the container has in /dev/infiniband."""
    return look(cri, container).nodes


def expected(node: Fabric) -> dict[str, str]:
    """What the pod asks for."""
    return {name: tree_number(node, name) for name in ("uverbs3", "rdma_cm")}

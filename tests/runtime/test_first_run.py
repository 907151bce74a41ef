"""The first run as a new user does it: install the wheel, look at what would happen to the pods of a real runtime.

Nothing may change: not the host's network, not a container, not a file.
"""

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig import hoststate
from tests.rig.cri import Container, Cri
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import host_link, look
from tests.rig.fabric import Fabric
from tests.rig.installed import clean_environment, install_wheel
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

POD = "rdma.noderesource.dev/pod"
MEMLOCK = 4 << 20
"""What no container has by itself."""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed program."""
    return install_wheel(tmp_path_factory.mktemp("first-run")).with_name("nri-rdma")


class DryRun:
    """`nri-rdma run --dry-run -o json` that runs."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self._process, self._out, self._err = process, out, err

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it reported; the last line may be on its way."""
        return [json.loads(line) for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def line(self, event: str, pod: str, container: str = "") -> Mapping[str, Any]:
        """The one line about that, which was told before the runtime had its answer."""
        found = [
            it
            for it in self.lines
            if (it["event"], it.get("pod"), it.get("container", "")) == (event, f"default/{pod}", container)
        ]
        assert len(found) == 1, f"{self._out.read_text()}\n{self._err.read_text()}"
        return found[0]

    def wait_line(self, event: str, pod: str, container: str = "") -> Mapping[str, Any]:
        """A line about what was there before: told in its own time."""
        wanted = (event, f"default/{pod}", container)
        wait_until(
            lambda: any((it["event"], it.get("pod"), it.get("container", "")) == wanted for it in self.lines),
            f"{wanted} to be reported",
            10,
        )
        return self.line(event, pod, container)

    def synchronized(self) -> bool:
        assert self._process.poll() is None, self._err.read_text()
        return " synchronized " in self._err.read_text()

    def end(self, number: signal.Signals) -> Mapping[str, Any]:
        """End it by a signal; its summary."""
        self._process.send_signal(number)
        assert self._process.wait(10) == 0, self._err.read_text()
        return self.lines[-1]


@contextmanager
def dry_run(program: Path, folder: Path, runtime: Runtime, node: Fabric) -> Iterator[DryRun]:
    out, err = folder / "out", folder / "err"
    flags = {
        "--nri-socket": runtime.nri_socket,
        "--sysfs-root": node.sysfs,
        "--dev-root": node.dev,
        "--state-dir": runtime.run / "nri-rdma",
        "--memlock": MEMLOCK,
        "--log-file": runtime.run / "nri-rdma.log",  # the daemon's
    }
    command = [str(program), "run", "--dry-run", "-o", "json", *EXCLUSIVE_FIRST]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            command + [str(word) for flag in flags.items() for word in flag],
            cwd="/",
            env=clean_environment(),
            stdout=stdout,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
        )
    try:
        running = DryRun(process, out, err)
        wait_until(running.synchronized, "the dry run to have the runtime's pods")
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def assert_untouched(cri: Cri, container: Container) -> None:
    """The container runs, and has what the runtime gives every container."""
    seen = look(cri, container)
    assert seen.nodes == {}
    assert set(seen.macs) == {"lo", "eth0"}
    assert not any(name.startswith(("NCCL", "UCX", "RDMA")) for name in seen.env)
    assert seen.memlock_kib != str(MEMLOCK // 1024)
    linux = cri.container_status(container).spec["linux"]
    assert not any("infiniband" in device["path"] for device in linux.get("devices", []))
    assert "rdma.max" not in linux.get("resources", {}).get("unified", {})


def doctor(program: Path, *flags: str | Path) -> tuple[int, Mapping[str, Mapping[str, str]]]:
    """The exit code, and each check's document by its name."""
    done = subprocess.run(
        [program, "doctor", "-o", "json", *flags],
        cwd="/",
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.returncode, {it["check"]: it for it in json.loads(done.stdout)["checks"]}


def test_the_doctor_says_what_a_bare_machine_lacks(host_equal: None, program: Path, tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    flags = ("--sysfs-root", tmp_path / "sys", "--nri-socket", tmp_path / "nri.sock", "--state-dir", tmp_path / "state")
    code, checks = doctor(program, *flags)
    assert code == 1
    assert checks["python"]["result"] == checks["packages"]["result"] == "ok"
    assert checks["packages"]["found"].endswith("with all that it depends on")
    lacking = {name for name, check in checks.items() if check["result"] == "problem"}
    assert lacking == {"rdma netns", "devices", "NRI socket"}
    assert "no RDMA device" in checks["devices"]["found"]
    assert 'plugins."io.containerd.nri.v1.nri"' in checks["NRI socket"]["fix"]
    assert not (tmp_path / "state").exists()


@pytest.mark.every_runtime
def test_the_doctor_finds_a_real_runtime_and_a_daemon_and_disturbs_neither(
    host_equal: None, program: Path, runtime: Runtime, node: Fabric, cri: Cri, daemon: Daemon
) -> None:
    pod = cri.run_pod("pod", annotations={POD: "- {match: {device: mlx5_4}}"})
    where = ("--sysfs-root", node.sysfs, "--dev-root", node.dev, "--state-dir", daemon.state_dir)
    code, checks = doctor(program, "--nri-socket", runtime.nri_socket, *where)
    assert code == 0, checks
    name, version = cri.version().split()[:2]
    assert checks["runtime"]["found"].startswith(f"{name} {version}, NRI 0.")
    assert checks["NRI socket"]["result"] == "ok"
    assert checks["device nodes"]["result"] == "ok"
    assert checks["daemon"]["found"].endswith(f"pid {daemon.pid}, synchronized")
    assert checks["guard"]["result"] == "warning"
    assert "uverbs4" in look(cri, cri.run_container(pod, "main")).nodes
    assert daemon.log.count(" synchronized ") == 1
    cri.delete_pod(pod)


@pytest.mark.every_runtime
def test_a_dry_run_beside_a_real_runtime_reports_every_pod_and_changes_nothing(
    host_equal: None, program: Path, tmp_path: Path, runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    old = cri.run_pod("old", annotations={POD: "- {mode: shared, match: {device: mlx5_7}}"})
    old_container = cri.run_container(old, "main")
    before, files = hoststate.take(), set(runtime.run.iterdir())  # the runtime's own are there by now
    with dry_run(program, tmp_path, runtime, node) as running:
        assert running.wait_line("pod", "old")["was_there"]
        given = running.wait_line("container", "old", "main")
        assert [it["path"] for it in given["char_devices"]] == ["/dev/infiniband/uverbs7", "/dev/infiniband/rdma_cm"]

        plain = cri.run_pod("plain")
        containers = [cri.run_container(plain, "main")]
        assert running.line("pod", "plain")["would"] == "nothing"
        assert running.line("container", "plain", "main")["would"] == "nothing"

        served = cri.run_pod("served", annotations={POD: "- {name: fabric, match: {device: mlx5_2}}"})
        containers.append(cri.run_container(served, "main"))
        told = running.line("pod", "served")
        assert (told["would"], told["was_there"], told["isolation"]) == ("attach", False, "soft")
        assert [(it["device"], it["mode"]) for it in told["devices"]] == [("mlx5_2", "exclusive")]
        assert told["devices"][0]["netdevs"] == [
            {"name": "rail2", "pod_name": "rdma0", "takes": ["addresses", "routes", "rules", "neighbours"]}
        ]
        told = running.line("container", "served", "main")
        numbers = {it["path"]: f"{it['major']}:{it['minor']}" for it in told["char_devices"]}
        assert numbers == {f"/dev/infiniband/{name}": node.char_device(name).dev for name in ("uverbs2", "rdma_cm")}
        assert told["env"]["RDMA_NETDEVS_FABRIC"] == "rdma0"
        assert told["memlock"] == MEMLOCK

        refused = cri.run_pod("refused", annotations={POD: "- {match: {device: mlx5_2}}"})
        containers.append(cri.run_container(refused, "main"))
        told = running.line("pod", "refused")
        assert (told["would"], told["code"]) == ("refuse", "DEVICE-IN-USE")
        assert "held by pod default/served" in told["error"]
        assert running.line("container", "refused", "main")["code"] == "DEVICE-IN-USE"

        two = cri.run_pod("two", annotations={POD: "- {count: 2, containers: [trainer]}"})
        containers += [cri.run_container(two, name) for name in ("trainer", "sidecar")]
        assert [it["device"] for it in running.line("pod", "two")["devices"]] == ["mlx5_0", "mlx5_1"]
        assert running.line("container", "two", "trainer")["env"]["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
        assert running.line("container", "two", "sidecar")["would"] == "nothing"

        for container in (old_container, *containers):
            assert_untouched(cri, container)
        assert not hoststate.difference(before, hoststate.take())
        assert all(host_link(f"rail{number}") is not None for number in range(8))

        cri.delete_pod(served)
        assert running.line("ended", "served")
        again = cri.run_pod("again", annotations={POD: "- {match: {device: mlx5_2}}"})
        assert running.line("pod", "again")["would"] == "attach"
        for pod in (old, plain, refused, two, again):
            cri.delete_pod(pod)
        summary = running.end(signal.SIGINT)
    assert summary == {
        "event": "finished",
        "pods": 6,
        "attach": 4,
        "refuse": 1,
        "nothing": 1,
        "served": 0,
        "codes": {"DEVICE-IN-USE": 1},
        "containers": 6,
        "changed": 0,
    }
    assert set(runtime.run.iterdir()) == files, "no lock, no socket, no journal"


def test_a_dry_run_beside_the_daemon_takes_nothing_from_it(
    host_equal: None, program: Path, tmp_path: Path, runtime: Runtime, node: Fabric, cri: Cri, daemon: Daemon
) -> None:
    old = cri.run_pod("old", annotations={POD: "- {match: {device: mlx5_1}}"})
    with dry_run(program, tmp_path, runtime, node) as running:
        assert running.lines[0]["daemon"] == daemon.pid
        told = running.wait_line("pod", "old")
        assert (told["would"], told["devices"]) == ("served", [{"device": "mlx5_1"}])
        seen = look(cri, cri.run_container(old, "late"))
        assert "uverbs1" in seen.nodes
        new = cri.run_pod("new", annotations={POD: "1"})
        assert running.line("pod", "new")["devices"][0]["device"] == "mlx5_0"
        assert "uverbs0" in look(cri, cri.run_container(new, "main")).nodes
        assert daemon.status()["runtime"]["link"] == "synchronized"
        for pod in (old, new):
            cri.delete_pod(pod)
        assert running.end(signal.SIGTERM)["served"] == 1
    daemon.wait_given_back()

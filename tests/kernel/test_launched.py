"""The daemon as the runtime starts it: the installed program, behind a link, with nothing but its connection."""

import json
import os
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.daemon.locks import Sole
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import RpcError
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.rig.launcher import ENTRY_POINT, PROJECT, LaunchedPlugin, install
from tests.rig.node import load
from tests.rig.systree import build_tree

pytestmark = pytest.mark.root

SOON = 15.0
"""A start takes a fifth of a second; a busy machine takes its time."""
SHARED = {"rdma.noderesource.dev": "[{mode: shared}]"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("venv"))


@pytest.fixture
def place(tmp_path: Path, program: Path) -> Path:
    """A folder with a node's tree, and the runtime's folder of plugins."""
    build_tree(load("small"), tmp_path / "sys")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/90-nri-rdma").symlink_to(program)
    (tmp_path / "run").mkdir()
    return tmp_path


@pytest.fixture
def runtime() -> Iterator[FakeRuntime]:
    with TemporaryDirectory(prefix="nri-") as folder, FakeRuntime(Path(folder) / "nri.sock") as made:
        yield made


def config(place: Path, **more: object) -> str:
    """The text of the drop-in."""
    settings = {
        "sysfs_root": str(place / "sys"),
        "dev_root": str(place),
        "cgroup_root": str(place),
        "state_dir": str(place / "state"),
        "nri_socket": str(place / "nri.sock"),
        **more,
    }
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def launch(place: Path, **variables: str) -> LaunchedPlugin:
    return LaunchedPlugin(place / "plugins/90-nri-rdma", place / "run", **variables)


def first_log(place: Path, folder: str = "run/nri-rdma") -> str:
    """What is logged before there are settings, by default; syslog has it where there is one."""
    if Path("/dev/log").exists():
        pytest.skip("this machine has a syslog, which has the lines")
    return (place / folder / "nri-rdma.log").read_text()


def test_the_program_is_the_one_that_is_installed() -> None:
    scripts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
    assert [f"{name} = {target}" for name, target in scripts.items()] == [ENTRY_POINT]


@pytest.mark.parametrize("name", ["nri-rdma", "90-nri-rdma"])
def test_the_runtime_starts_it_and_its_settings_come_with_configure(
    place: Path, runtime: FakeRuntime, name: str
) -> None:
    """NRI 0.3 tells the name with the index before it."""
    runtime.configuration.config = config(place, log_file=str(place / "daemon.log"))
    with launch(place, name=name) as plugin:
        registration = runtime.adopt(plugin.connection, SOON)
        assert (registration.plugin_name, registration.plugin_idx) == ("nri-rdma", "90")
        pod = nri.PodSandbox(id="s", name="one", uid="u", namespace="default", annotations=SHARED)
        runtime.run_pod_sandbox(pod)
        answer = runtime.create_container(pod, nri.Container(id="c", pod_sandbox_id="s", name="main"))
        assert "/dev/infiniband/rdma_cm" in {device.path for device in answer.adjust.linux.devices}
        status = ask_status(place / "state/control.sock")
        assert status["runtime"]["launched"]
        assert (status["daemon"]["pid"], status["runtime"]["link"]) == (plugin.pid, "synchronized")
        lines = (place / "daemon.log").read_text().splitlines()
        assert "started by the runtime" in lines[0]
        assert list((place / "run").iterdir()) == []
        assert (place / "daemon.log").stat().st_mode & 0o777 == 0o600
        descriptor = Path(f"/proc/{plugin.pid}/fdinfo/3").read_text()
        assert int(descriptor.split("flags:")[1].split()[0], 8) & os.O_CLOEXEC


def test_it_ends_with_the_connection_and_what_pods_have_stays_theirs(place: Path, runtime: FakeRuntime) -> None:
    runtime.configuration.config = config(place)
    pod = nri.PodSandbox(id="s", name="one", uid="u", namespace="default", annotations=SHARED)
    with launch(place) as plugin:
        runtime.adopt(plugin.connection, SOON)
        runtime.run_pod_sandbox(pod)
        runtime.disconnect()
        assert plugin.wait() == 0
    runtime.pods = [pod]
    with launch(place) as plugin:
        runtime.adopt(plugin.connection, SOON)
        assert [it["id"] for it in ask_status(place / "state/control.sock")["sandboxes"]] == ["s"]


def test_sigterm_ends_it_in_order(place: Path, runtime: FakeRuntime) -> None:
    runtime.configuration.config = config(place)
    with launch(place) as plugin:
        runtime.adopt(plugin.connection, SOON)
        plugin.signal(signal.SIGTERM)
        runtime.wait_closed(SOON)
        assert plugin.wait() == 0
    assert not (place / "state/control.sock").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"sysfs_root": "/no/such/tree"}, "/no/such/tree"),
        ({"state_dir": "/proc/version/state"}, "/proc/version"),
    ],
    ids=["hardware", "state"],
)
def test_what_keeps_it_from_starting_is_told_to_the_runtime_and_it_ends(
    place: Path, runtime: FakeRuntime, more: dict[str, object], told: str
) -> None:
    runtime.configuration.config = config(place, **more)
    with launch(place) as plugin:
        with pytest.raises(RpcError) as refused:
            runtime.adopt(plugin.connection, SOON)
        assert refused.value.message.startswith("nri-rdma: ")
        assert told in refused.value.message
        runtime.disconnect()
        assert plugin.wait() == 1


def test_why_it_did_not_start_is_one_line_of_the_log(place: Path, runtime: FakeRuntime) -> None:
    runtime.configuration.config = config(place, sysfs_root="/no/such/tree")
    with launch(place) as plugin:
        with pytest.raises(RpcError):
            runtime.adopt(plugin.connection, SOON)
        runtime.disconnect()
        plugin.wait()
    (line,) = [line for line in first_log(place, "state").splitlines() if " warning " in line]
    assert "refused" in line
    assert "/no/such/tree" in line


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"memlock": "lots"},
            "memlock = 'lots' cannot be used, the configuration that the runtime sent:6. Next: memlock is auto",
        ),
        ({"memlok": "auto"}, "the configuration that the runtime sent"),
        ({"log_file": "/proc/version/log"}, "log_file = /proc/version/log cannot be written"),
    ],
    ids=["value", "key", "log"],
)
def test_a_setting_beside_the_job_takes_no_pod_its_devices(
    place: Path, runtime: FakeRuntime, more: dict[str, object], told: str
) -> None:
    runtime.configuration.config = config(place, **more)
    pod = nri.PodSandbox(id="s", name="one", uid="u", namespace="default", annotations=SHARED)
    with launch(place) as plugin:
        runtime.adopt(plugin.connection, SOON)
        runtime.run_pod_sandbox(pod)
        answer = runtime.create_container(pod, nri.Container(id="c", pod_sandbox_id="s", name="main"))
        assert "/dev/infiniband/rdma_cm" in {device.path for device in answer.adjust.linux.devices}
        (trouble,) = ask_status(place / "state/control.sock")["troubles"]
        assert told in trouble["why"]


def test_a_connection_that_is_none_is_told_to_the_log(place: Path) -> None:
    with launch(place, socket_variable="77") as plugin:
        assert plugin.wait() == 1
    assert "NRI_PLUGIN_SOCKET='77' names no connection to the runtime: [Errno 9]" in first_log(place)


def test_a_daemon_that_is_there_already_is_named(place: Path, runtime: FakeRuntime) -> None:
    runtime.configuration.config = config(place)
    runtime.configuration.request_timeout = 500  # it waits that long, less a quarter, for the other to go
    sole = Sole(place / "state", place / "other.sock")
    with launch(place) as plugin:
        with pytest.raises(RpcError) as refused:
            runtime.adopt(plugin.connection, SOON)
        assert f"STATE-LOCKED: another daemon (pid {os.getpid()}) uses this state directory" in refused.value.message
    sole.release()


def test_two_daemons_of_one_runtime_refuse_each_other_whatever_their_state_directories(
    place: Path, runtime: FakeRuntime
) -> None:
    runtime.configuration.config = config(place)
    runtime.configuration.request_timeout = 500
    sole = Sole(place / "elsewhere", place / "nri.sock")
    with launch(place) as plugin:
        with pytest.raises(RpcError) as refused:
            runtime.adopt(plugin.connection, SOON)
        assert f"STATE-LOCKED: another daemon (pid {os.getpid()}) answers this runtime" in refused.value.message
    sole.release()


def test_it_waits_for_a_predecessor_that_is_about_to_end(place: Path, runtime: FakeRuntime) -> None:
    """The runtime was restarted: its first child still closes its doors when the second is configured."""
    runtime.configuration.config = config(place)
    runtime.configuration.request_timeout = int(SOON * 1000)  # a busy machine may take 2 s to end a daemon
    with launch(place) as first, launch(place) as second:
        runtime.adopt(first.connection, SOON)
        first.signal(signal.SIGSTOP)
        runtime.disconnect()
        first.signal(signal.SIGCONT)
        runtime.adopt(second.connection, SOON)
        assert first.wait() == 0
        wait_until(lambda: ask_status(place / "state/control.sock")["daemon"]["pid"] == second.pid, "the second")


def test_what_an_old_runtime_loses_is_refused_when_asked_for_and_told_when_it_is_only_our_default(
    place: Path, runtime: FakeRuntime
) -> None:
    runtime.configuration.config = config(place, log_file=str(place / "daemon.log"), memlock="unlimited")
    runtime.configuration.runtime_version = "v1.7.6"
    runtime.configuration.request_timeout = runtime.configuration.registration_timeout = 0
    runtime.configuration.runtime_name = "containerd"
    with launch(place) as plugin:
        runtime.adopt(plugin.connection, SOON)
        asking = {"rdma.noderesource.dev": "[{mode: shared, memlock: 65536}]"}
        with pytest.raises(RpcError, match=r"RUNTIME-TOO-OLD: containerd v1\.7\.6 does not set RLIMIT_MEMLOCK"):
            runtime.run_pod_sandbox(nri.PodSandbox(id="a", name="a", uid="a", namespace="d", annotations=asking))
        pod = nri.PodSandbox(id="b", name="b", uid="b", namespace="d", annotations=SHARED)
        runtime.run_pod_sandbox(pod)
        answer = runtime.create_container(pod, nri.Container(id="c", pod_sandbox_id="b", name="main"))
        assert list(answer.adjust.rlimits) == []
        status = ask_status(place / "state/control.sock")
        assert (status["runtime"]["nri"], status["runtime"]["lacks"]) == ("0.3.0", ["RLIMIT_MEMLOCK of containers"])
        assert status["memlock"]["reason"] == "containerd v1.7.6 does not set it for plugins"
        assert (place / "daemon.log").read_text().count(" warning the runtime does not set RLIMIT_MEMLOCK") == 1


def test_a_runtime_that_tells_no_pods_to_plugins_that_it_starts_is_served_from_configure_on(
    place: Path, runtime: FakeRuntime
) -> None:
    runtime.configuration.config = config(place, memlock="65536")
    runtime.configuration.runtime_version = "1.7.24~ds1"
    runtime.configuration.request_timeout = runtime.configuration.registration_timeout = 0
    with launch(place) as plugin:
        runtime.adopt(plugin.connection, SOON, synchronize=False)
        status = ask_status(place / "state/control.sock")
        assert (status["runtime"]["nri"], status["runtime"]["link"]) == ("0.6.1", "synchronized")
        pod = nri.PodSandbox(id="b", name="b", uid="b", namespace="d", annotations=SHARED)
        runtime.run_pod_sandbox(pod)
        answer = runtime.create_container(pod, nri.Container(id="c", pod_sandbox_id="b", name="main"))
        assert [limit.hard for limit in answer.adjust.rlimits] == [65536]


def test_a_runtime_that_would_end_with_an_error_at_configure_refuses_pods_instead(
    place: Path, runtime: FakeRuntime
) -> None:
    runtime.configuration.config = config(place, sysfs_root="/no/such/tree", annotation_prefix="ours.example.com")
    runtime.configuration.request_timeout = 0
    with launch(place) as plugin:
        runtime.adopt(plugin.connection, SOON, synchronize=False)
        asking = nri.PodSandbox(id="a", annotations={"ours.example.com": "1"})
        with pytest.raises(RpcError, match="nri-rdma: INVENTORY: this is no sysfs"):
            runtime.run_pod_sandbox(asking)
        runtime.run_pod_sandbox(nri.PodSandbox(id="b", annotations=SHARED))
        runtime.disconnect()
        assert plugin.wait() == 1
    log = place / "state/nri-rdma.log"
    if not Path("/dev/log").exists():
        assert " critical not started, and an error would make this runtime exit" in log.read_text()


def test_a_runtime_that_nobody_knows_is_taken_to_do_everything(place: Path, runtime: FakeRuntime) -> None:
    runtime.configuration.config = config(place, log_file=str(place / "daemon.log"))
    runtime.configuration.runtime_name, runtime.configuration.runtime_version = "another", "1"
    with launch(place) as plugin:
        runtime.adopt(plugin.connection, SOON)
        assert ask_status(place / "state/control.sock")["runtime"]["lacks"] == []
        lines = (place / "daemon.log").read_text().splitlines()
        assert [line for line in lines if " info the runtime's release is unknown: it is assumed to" in line]

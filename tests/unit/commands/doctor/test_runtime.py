"""The doctor on the runtime: its NRI socket, its configuration, what it applies and what it leaves."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.commands.doctor import runtime, service
from nri_rdma.commands.doctor.finding import Result
from nri_rdma.config.settings import Memlock
from nri_rdma.pb import nri_pb2 as nri
from tests.fakes.containerd import FakeContainerd
from tests.fakes.runtime import FakeRuntime
from tests.unit.commands.doctor.bench import ALL_CAPABILITIES, NA, NO_CAPABILITY, OK, PROBLEM, WARNING, Bench, served
from tests.unit.doors.deviceplugin.pools import pool
from tests.unit.rigs.inside_daemon import InsideDaemon


def test_a_runtime_that_lets_plugins_register_is_named_and_left_as_it_was(bench: Bench) -> None:
    with served(FakeRuntime(bench.settings.nri_socket, version="v2.1.9")) as fake:
        machine = bench.machine
        assert runtime.nri_socket(machine).result is OK
        found = runtime.runtime(machine)
        assert (found.result, found.found) == (OK, "containerd v2.1.9, NRI 0.8.0")
    assert fake.registration is not None
    assert fake.registration.plugin_name == "nri-rdma-doctor"
    assert fake.events == 1 << (nri.REMOVE_POD_SANDBOX - 1), "what nobody waits for"


def test_a_runtime_that_loses_what_we_ask_is_a_warning(bench: Bench) -> None:
    with served(FakeRuntime(bench.settings.nri_socket, version="v1.7.2", request_timeout_ms=0)):
        found = bench.finds(runtime.runtime)
    assert (found.result, "does not apply: RLIMIT_MEMLOCK" in found.found) == (WARNING, True)


@contextmanager
def listening(path: Path) -> Iterator[int]:
    """Somebody listens there: this process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        yield os.getpid()


def test_a_containerd_that_can_be_asked_to_remove_what_it_leaves_is_well(bench: Bench) -> None:
    bench.settings = replace(bench.settings, containerd_socket=bench.folder / "containerd.sock")
    with served(FakeRuntime(bench.settings.nri_socket, version="v2.1.9")), listening(bench.folder / "containerd.sock"):
        found = bench.finds(runtime.containerd_socket)
    assert (found.result, "can be removed" in found.found) == (OK, True)


@pytest.mark.parametrize(
    ("name", "found_words"),
    [("nothing", "nothing: No such file or directory"), ("", "the setting containerd_socket is empty")],
)
def test_a_containerd_that_cannot_be_asked_to_remove_what_it_leaves_is_a_warning(
    bench: Bench, name: str, found_words: str
) -> None:
    bench.settings = replace(bench.settings, containerd_socket=bench.folder / name if name else None)
    with served(FakeRuntime(bench.settings.nri_socket, version="v2.1.9")):
        found = bench.finds(runtime.containerd_socket)
    assert (found.result, found_words in found.found, "2.2.6" in found.fix) == (WARNING, True, True)


def test_a_socket_of_another_containerd_is_a_warning(bench: Bench) -> None:
    """Docker's, where the kubelet has one of its own."""
    path = bench.folder / "containerd.sock"
    bench.settings = replace(bench.settings, containerd_socket=path)
    script = f"import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind({str(path)!r})\ns.listen()\nprint()\ninput()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        with served(FakeRuntime(bench.settings.nri_socket, version="v2.1.9")):
            found = bench.finds(runtime.containerd_socket)
        other.stdin.close()
    assert (found.result, f"another process (pid {other.pid})" in found.found) == (WARNING, True)


@pytest.mark.parametrize("version", ["v1.7.24", "v2.2.6", "v2.3.3"])
def test_a_runtime_that_leaves_nothing_of_refused_pods_is_not_asked(bench: Bench, version: str) -> None:
    with served(FakeRuntime(bench.settings.nri_socket, version=version)):
        assert bench.finds(runtime.containerd_socket).result is NA
    assert bench.finds(runtime.containerd_socket).result is NA, "nor one that is not there"


def test_a_runtime_with_many_pods_is_heard_to_the_end(bench: Bench) -> None:
    pods = [nri.PodSandbox(id=str(number)) for number in range(5)]
    with served(FakeRuntime(bench.settings.nri_socket, pods=pods, sync_chunk=2)):
        assert bench.finds(runtime.nri_socket).result is OK


def test_an_absent_socket_is_a_problem_with_the_lines_that_turn_nri_on(bench: Bench) -> None:
    found = bench.finds(runtime.nri_socket)
    assert (found.result, "No such file or directory" in found.found) == (PROBLEM, True)
    assert found.fix.endswith(runtime.CONTAINERD_TOML)
    assert bench.finds(runtime.runtime).result is NA
    assert bench.finds(runtime.memlock).result is NA


def test_a_configuration_that_keeps_plugins_out_is_named(bench: Bench) -> None:
    file = bench.write(
        "etc/containerd/config.toml", runtime.CONTAINERD_TOML.replace("disable = false", "disable = true")
    )
    assert f"{file} says disable = true" in bench.finds(runtime.nri_socket).found
    file.write_text("not = [toml")
    assert "says" not in bench.finds(runtime.nri_socket).found


def test_a_runtime_that_hangs_up_is_a_problem(bench: Bench) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(bench.settings.nri_socket))
    listener.listen()

    def hang_up() -> None:
        listener.accept()[0].close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    found = bench.finds(runtime.nri_socket)
    thread.join()
    listener.close()
    assert (found.result, "does not let a plugin register" in found.found) == (PROBLEM, True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user")
def test_what_another_user_may_not_ask_is_not_applicable(bench: Bench, daemon: InsideDaemon) -> None:
    bench.settings = replace(bench.settings, control_socket=daemon.settings.control_path)
    fake = FakeRuntime(bench.settings.nri_socket)
    bench.folder.chmod(0o700)
    bench.user = 65534
    machine = bench.machine
    os.seteuid(bench.user)
    try:
        found = [check(machine) for check in (runtime.nri_socket, service.daemon)]
    finally:
        os.seteuid(0)
        fake.close()
    assert [(it.result, it.fix) for it in found] == [(NA, "run `nri-rdma doctor` as root")] * 2


def test_cri_o_has_its_own_lines(bench: Bench) -> None:
    file = bench.write("etc/crio/crio.conf.d/10-nri.conf", "[crio.nri]\nenable_nri = false\n")
    found = bench.finds(runtime.nri_socket)
    assert f"{file} says enable_nri = false" in found.found
    file.write_text("[crio.nri]\nnri_disable_connections = true\n")
    assert f"{file} says nri_disable_connections = true" in bench.finds(runtime.nri_socket).found
    assert found.fix.endswith(runtime.CRIO_TOML)


def test_a_socket_that_nobody_serves_is_a_problem(bench: Bench) -> None:
    FakeRuntime(bench.settings.nri_socket).close()
    found = bench.finds(runtime.nri_socket)
    assert (found.result, "Connection refused" in found.found) == (PROBLEM, True)


def test_a_daemon_that_the_runtime_started_needs_no_socket(bench: Bench) -> None:
    machine = bench.machine
    vars(machine)["daemon"] = {"runtime": {"launched": True}}  # what its status says
    assert runtime.nri_socket(machine).result is OK


def test_what_the_runtime_may_not_raise_is_told(bench: Bench) -> None:
    pid = str(os.getpid())  # the fake runtime is this process
    bench.capabilities(ALL_CAPABILITIES, pid)
    bench.write(f"proc/{pid}/limits", "Max locked memory         8388608   8388608   bytes\n")
    with served(FakeRuntime(bench.settings.nri_socket)):
        assert bench.finds(runtime.memlock).result is OK
    bench.settings.nri_socket.unlink()
    bench.capabilities(NO_CAPABILITY, pid)
    with served(FakeRuntime(bench.settings.nri_socket)):
        found = bench.finds(runtime.memlock)
    assert (found.result, "8388608 bytes" in found.found) == (WARNING, True)
    bench.settings.nri_socket.unlink()
    bench.settings = replace(bench.settings, memlock=Memlock(bytes=1 << 30))
    with served(FakeRuntime(bench.settings.nri_socket)):
        assert bench.finds(runtime.memlock).result is PROBLEM


@pytest.mark.parametrize(("told", "result"), [("true", OK), ("false", WARNING), ("1", NA)])
def test_a_containerd_that_does_not_read_cdi_specs_is_a_warning_that_names_the_setting(
    bench: Bench, told: str, result: Result
) -> None:
    with FakeContainerd() as containerd:
        containerd.configuration = f'{{"enableCDI": {told}}}'
        bench.settings = replace(bench.settings, containerd_socket=containerd.socket, pools=(pool(),))
        found = bench.finds(runtime.cdi_specs)
        bench.settings = replace(bench.settings, pools=())
        without_shares = bench.finds(runtime.cdi_specs)
    assert (found.result, without_shares.result) == (result, result)
    if result is WARNING:
        assert "does not read CDI specs (enable_cdi = false)" in found.found
        assert "containers with shares of hcas have no guard" in found.found
        assert "guard" not in without_shares.found
        assert "enable_cdi = true" in found.fix


def test_without_containerd_its_cdi_is_not_judged(bench: Bench) -> None:
    bench.settings = replace(bench.settings, containerd_socket=None)
    assert bench.finds(runtime.cdi_specs).result is NA

"""Each check of the doctor says ok of a machine that is well, and names the fault and its fix of one that is not."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from nri_rdma import __version__
from nri_rdma.attach.journal import Journal
from nri_rdma.commands.doctor import guard, hardware, kernel, runtime, service, software
from nri_rdma.commands.doctor.examination import CHECKS, examine
from nri_rdma.commands.doctor.finding import Finding, Result
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.commands.doctor.visit import visit
from nri_rdma.config.settings import Document, Memlock, Settings, load
from nri_rdma.engine.synchronize import Listed, ListedContainer
from nri_rdma.errors import ErrorCode, InventoryError, SettingError
from nri_rdma.model.device import CharKind, Node, RdmaNetns
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode
from nri_rdma.model.selector import Selector
from nri_rdma.pb import nri_pb2 as nri
from tests.fakes.runtime import FakeRuntime
from tests.unit.commands.cli.daemon import InsideDaemon
from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.model.hardware import nic, tied

OK, WARNING, PROBLEM, NA = Result.OK, Result.WARNING, Result.PROBLEM, Result.NOT_APPLICABLE
ALL_CAPABILITIES, NET_ADMIN_ONLY, NO_CAPABILITY = "000001ffffffffff", "0000000000001000", "0000000000000000"


class Bench:
    """A machine that is well, in folders that a test may change."""

    def __init__(self, folder: Path, node: Node) -> None:
        self.folder = folder
        self.proc, self.etc, self.run = folder / "proc", folder / "etc", folder / "run"
        self.cgroup, self.dev = folder / "cgroup", folder / "dev"
        self.packages = folder / "site-packages"
        self.write("proc/sys/kernel/osrelease", "6.12.57+deb13-amd64\n")
        self.capabilities(ALL_CAPABILITIES)
        self.mounts("tmpfs")
        self.write("cgroup/cgroup.controllers", "cpu memory rdma\n")
        self.install("nri-rdma", __version__, "protobuf<8,>=6.31.1", 'grpcio>=1; extra == "otlp"')
        self.install("protobuf", "6.33.0")
        self.run.mkdir()
        self.node: Node | InventoryError = node
        self.user = 0
        self.python = (3, 12, 1)
        self.setting_error: SettingError | None = None
        self.settings = Settings(
            cdi_dirs=(self.etc / "cdi",),
            nri_socket=folder / "nri.sock",
            state_dir=folder / "run/nri-rdma",
            cgroup_root=self.cgroup,
            dev_root=self.dev,
            allow_default_pool=True,
        )

    @property
    def machine(self) -> Machine:
        return Machine(
            settings=self.settings,
            setting_error=self.setting_error,
            config_file=self.etc / "nri-rdma/config.toml",
            read_node=self._read,
            proc=self.proc,
            etc=self.etc,
            run=self.run,
            share=self.folder / "share",
            package_folders=(str(self.packages),),
            python=self.python,
            user=self.user,
        )

    def finds(self, check: Callable[[Machine], Finding]) -> Finding:
        return check(self.machine)

    def write(self, path: str, text: str) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def capabilities(self, mask: str, pid: str = "self") -> None:
        self.write(f"proc/{pid}/status", f"Name:\tx\nCapEff:\t{mask}\n")

    def mounts(self, kind: str) -> None:
        lines = f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / {self.folder.resolve()}/run rw - {kind} none rw\n"
        self.write("proc/self/mountinfo", lines)

    def install(self, name: str, version: str, *requires: str) -> None:
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {item}" for item in requires)]
        folder = f"site-packages/{name.replace('-', '_')}-{version}.dist-info"
        self.write(f"{folder}/METADATA", "Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")

    def change_node(self, **fields: Any) -> None:
        assert isinstance(self.node, Node)
        self.node = replace(self.node, **fields)

    def _read(self) -> tuple[Node, tuple[str, ...]]:
        if isinstance(self.node, InventoryError):
            raise self.node
        return self.node, ()


@pytest.fixture
def bench(daemon: InsideDaemon) -> Iterator[Bench]:
    with TemporaryDirectory(prefix="doctor-") as folder:
        yield Bench(Path(folder), replace(daemon.node, rdma_netns=RdmaNetns.SHARED))


@contextmanager
def served(fake: FakeRuntime) -> Iterator[FakeRuntime]:
    """A runtime that takes one plugin."""
    thread = threading.Thread(target=fake.accept)
    thread.start()
    try:
        yield fake
    finally:
        thread.join(10)
        fake.close()


# The program itself


def test_a_python_that_is_too_old_is_a_problem(bench: Bench) -> None:
    assert bench.finds(software.python) == Finding(check="python", result=OK, found="Python 3.12.1")
    bench.python = (3, 10, 12)
    found = bench.finds(software.python)
    assert (found.result, found.fix) == (PROBLEM, "install it with Python 3.11 or newer")


def test_packages_that_are_there_in_their_versions_are_fine(bench: Bench) -> None:
    found = bench.finds(software.packages)
    assert (found.result, found.found) == (OK, f"nri-rdma {__version__}, with all that it depends on")


def test_a_package_that_is_missing_or_of_another_version_is_a_problem(bench: Bench) -> None:
    bench.install("nri-rdma", __version__, "protobuf<8,>=6.31.1", "click<9,>=8.1", "pyroute2<0.10,>=0.9.4")
    bench.install("click", "9.0")
    found = bench.finds(software.packages)
    assert found.result is PROBLEM
    assert "click is 9.0, and has to be <9,>=8.1" in found.found
    assert "pyroute2 is missing" in found.found
    assert "protobuf" not in found.found


def test_a_program_that_is_not_installed_has_no_packages_to_check(bench: Bench) -> None:
    bench.packages.rename(bench.folder / "elsewhere")
    assert bench.finds(software.packages).result is NA


def test_no_configuration_file_is_no_problem(bench: Bench) -> None:
    found = bench.finds(software.configuration)
    assert (found.result, found.found.endswith("is not there: defaults, flags and environment count")) == (OK, True)


def test_a_configuration_file_that_can_be_used_is_counted(bench: Bench) -> None:
    bench.write("etc/nri-rdma/config.toml", "")
    bench.settings = replace(bench.settings, pools=(Pool(name="gold", modes=(Mode.SHARED,)),))
    found = bench.finds(software.configuration)
    assert (found.result, found.found.endswith("config.toml: 1 pools, 0 rules")) == (OK, True)


def test_a_configuration_that_cannot_be_used_is_told_with_file_line_and_key(bench: Bench) -> None:
    file = bench.write("etc/nri-rdma/config.toml", '\n[pools.gold]\nmodez = ["shared"]\n')
    with pytest.raises(SettingError) as refused:
        load({}, {}, Document.read(file))
    bench.setting_error = refused.value
    found = bench.finds(software.configuration)
    assert found.result is PROBLEM
    assert f"{file}:" in found.found
    assert "modez" in found.found
    assert "modes" in found.fix


# The kernel


def test_the_kernels_release(bench: Bench) -> None:
    assert bench.finds(kernel.release).result is OK
    bench.write("proc/sys/kernel/osrelease", "5.10.0-32-amd64\n")
    found = bench.finds(kernel.release)
    assert (found.result, "5.14" in found.found) == (PROBLEM, True)
    (bench.proc / "sys/kernel/osrelease").unlink()
    assert bench.finds(kernel.release).result is NA


def test_roots_missing_capability_is_a_problem_and_another_users_is_not_applicable(bench: Bench) -> None:
    assert bench.finds(kernel.privileges).result is OK
    bench.capabilities(NET_ADMIN_ONLY)
    found = bench.finds(kernel.privileges)
    assert (found.result, found.found.startswith("CAP_SYS_ADMIN is missing")) == (PROBLEM, True)
    bench.user = 1000
    bench.capabilities(NO_CAPABILITY)
    found = bench.finds(kernel.privileges)
    assert (found.result, found.found.startswith("this user is not root")) == (NA, True)


def test_what_the_rdma_netns_mode_means_is_told(bench: Bench) -> None:
    found = bench.finds(kernel.rdma_netns)
    assert (found.result, "isolation soft" in found.found) == (OK, True)
    bench.change_node(rdma_netns=RdmaNetns.EXCLUSIVE)
    found = bench.finds(kernel.rdma_netns)
    assert (found.result, "mode shared" in found.found) == (WARNING, True)
    bench.settings = replace(
        bench.settings, allow_default_pool=False, pools=(Pool(name="gold", modes=(Mode.EXCLUSIVE,)),)
    )
    found = bench.finds(kernel.rdma_netns)
    assert (found.result, "isolation hard" in found.found) == (OK, True)


def test_a_kernel_without_rdma_is_a_problem_and_one_that_hides_its_mode_a_warning(bench: Bench) -> None:
    bench.change_node(rdma_netns=RdmaNetns.NONE)
    assert bench.finds(kernel.rdma_netns).result is WARNING
    bench.change_node(devices=())
    found = bench.finds(kernel.rdma_netns)
    assert (found.result, "modprobe" in found.fix) == (PROBLEM, True)


def test_a_hierarchy_that_cannot_limit_is_a_warning(bench: Bench) -> None:
    assert bench.finds(kernel.rdma_cgroup) == Finding(
        check="rdma cgroup", result=OK, found="v2, with the rdma controller"
    )
    bench.write("cgroup/cgroup.controllers", "cpu memory\n")
    assert "no rdma controller" in bench.finds(kernel.rdma_cgroup).found
    (bench.cgroup / "cgroup.controllers").unlink()
    found = bench.finds(kernel.rdma_cgroup)
    assert (found.result, "no unified (v2) hierarchy" in found.found) == (WARNING, True)


def test_a_kernel_that_keeps_limits_of_removed_cgroups_is_told_by_its_missing_rdma_peak(bench: Bench) -> None:
    bench.write("cgroup/system.slice/rdma.max", "")
    assert "keeps limits of a removed cgroup" in bench.finds(kernel.rdma_cgroup).found
    bench.write("cgroup/system.slice/rdma.peak", "")
    assert "keeps limits" not in bench.finds(kernel.rdma_cgroup).found


# The hardware


def test_devices_are_counted_with_what_the_host_uses(bench: Bench) -> None:
    assert bench.finds(hardware.devices).found == "8 RDMA devices, none in use by the host."
    assert isinstance(bench.node, Node)
    first, *others = bench.node.devices
    bench.change_node(devices=(replace(first, in_use=("rail0 carries a default route",)), *others))
    found = bench.finds(hardware.devices)
    assert (found.result, "mlx5_0 (rail0 carries a default route)" in found.found) == (OK, True)
    bench.change_node(devices=(replace(first, in_use=("busy",)),))
    assert bench.finds(hardware.devices).result is WARNING


def test_devices_that_can_only_be_shared_are_named_and_no_good_to_a_pool_that_does_not_share(bench: Bench) -> None:
    bench.change_node(devices=(tied(nic(0)),))
    found = bench.finds(hardware.devices)
    assert (found.result, found.found) == (
        OK,
        "1 RDMA device, none in use by the host; nobody can have alone mlx5_0 (eth0 is a path of the multipath route"
        " 10.9.0.0/16).",
    )
    for modes, result in (((Mode.EXCLUSIVE, Mode.SHARED), OK), ((Mode.EXCLUSIVE,), WARNING)):
        bench.settings = replace(bench.settings, allow_default_pool=False, pools=(Pool(name="rails", modes=modes),))
        assert bench.finds(hardware.pools).result is result


def test_no_device_is_a_problem_and_what_needs_devices_is_not_applicable(bench: Bench) -> None:
    bench.change_node(devices=())
    assert bench.finds(hardware.devices).result is PROBLEM
    assert bench.finds(hardware.device_nodes).result is NA
    assert bench.finds(hardware.pools).result is NA


def test_hardware_that_cannot_be_read_is_one_problem(bench: Bench) -> None:
    bench.node = InventoryError(ErrorCode.INVENTORY, "there is no sysfs", where="/nowhere", hint="mount it")
    found = bench.finds(hardware.devices)
    assert (found.result, found.found, found.fix) == (PROBLEM, "there is no sysfs (/nowhere)", "mount it")
    assert {bench.finds(check).result for check in (hardware.device_nodes, hardware.pools, kernel.rdma_netns)} == {NA}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: device nodes")
def test_device_nodes_that_are_there_with_their_numbers_are_fine(bench: Bench) -> None:
    assert isinstance(bench.node, Node)
    assert bench.node.rdma_cm is not None
    folder = bench.dev / "infiniband"
    folder.mkdir(parents=True)
    chars = [bench.node.rdma_cm, *(char for device in bench.node.devices for char in device.char_devices)]
    for char in chars:
        os.mknod(folder / char.path.rpartition("/")[2], stat.S_IFCHR | 0o666, os.makedev(char.major, char.minor))
    found = bench.finds(hardware.device_nodes)
    assert (found.result, found.found) == (OK, f"{len(chars)} nodes in {folder}")
    (folder / "uverbs0").unlink()
    os.mknod(folder / "uverbs0", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert "uverbs0 is not 231:192" in bench.finds(hardware.device_nodes).found


def test_device_nodes_that_are_not_there_are_a_warning(bench: Bench) -> None:
    bench.write("dev/infiniband/uverbs1", "")
    found = bench.finds(hardware.device_nodes)
    assert found.result is WARNING
    assert "uverbs0: No such file or directory" in found.found
    assert "uverbs1 is no character device" in found.found


def test_a_missing_kernel_module_is_a_problem_with_its_modprobe(bench: Bench) -> None:
    assert isinstance(bench.node, Node)
    first, *others = bench.node.devices
    bench.change_node(rdma_cm=None)
    assert (bench.finds(hardware.device_nodes).result, bench.finds(hardware.device_nodes).fix) == (
        PROBLEM,
        "modprobe rdma_ucm",
    )
    chars = tuple(char for char in first.char_devices if char.kind is not CharKind.UVERBS)
    bench.change_node(devices=(replace(first, char_devices=chars), *others))
    found = bench.finds(hardware.device_nodes)
    assert (found.result, found.fix, "mlx5_0" in found.found) == (PROBLEM, "modprobe ib_uverbs", True)


def test_pools_that_have_devices_are_listed(bench: Bench) -> None:
    found = bench.finds(hardware.pools)
    assert (found.result, found.found.startswith("default (exclusive, shared): mlx5_0, mlx5_1")) == (OK, True)


def test_an_empty_pool_is_a_warning_and_a_device_of_two_pools_a_problem(bench: Bench) -> None:
    def pool(name: str, *devices: str) -> Pool:
        return Pool(name=name, modes=(Mode.SHARED,), select=(Selector(device=devices),))

    bench.settings = replace(bench.settings, allow_default_pool=False, pools=(pool("a", "mlx5_0"), pool("b", "mlx9_9")))
    found = bench.finds(hardware.pools)
    assert (found.result, "Nothing to give in b" in found.found) == (WARNING, True)
    bench.settings = replace(bench.settings, pools=(pool("a", "mlx5_0"), pool("b", "mlx5_0")))
    found = bench.finds(hardware.pools)
    assert (found.result, "mlx5_0 by a and b" in found.found) == (PROBLEM, True)


# The runtime


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
    assert (found.result, f"another process's (pid {other.pid})" in found.found) == (WARNING, True)


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


def test_a_runtime_that_takes_no_notice_is_a_problem(bench: Bench) -> None:
    fake = FakeRuntime(bench.settings.nri_socket)
    seen = visit(bench.settings.nri_socket, 0.3)
    assert seen.unheard == "it took no notice of us"
    fake.close()


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


# The daemon, and what it leaves


def test_no_daemon_is_not_applicable_and_no_guard_a_warning(bench: Bench) -> None:
    found = bench.finds(service.daemon)
    assert (found.result, found.fix) == (NA, "nri-rdma run")
    assert bench.finds(guard.guard).result is WARNING


def test_a_daemon_without_a_runtime_is_a_problem(bench: Bench, daemon: InsideDaemon) -> None:
    bench.settings = daemon.settings
    found = bench.finds(service.daemon)
    assert (found.result, "disconnected from the runtime" in found.found) == (PROBLEM, True)
    assert bench.finds(guard.guard).result is WARNING


def _well(machine: Machine) -> dict[str, Any]:
    """The status that the machine's daemon gives, as if the runtime had told it its pods."""
    document: Any = machine.daemon
    document["runtime"] |= {"link": "synchronized", "error": ""}
    return dict(document)


def test_a_daemon_that_is_well_is_fine_and_its_ills_are_told(bench: Bench, daemon: InsideDaemon) -> None:
    bench.settings = daemon.settings
    machine = bench.machine
    status = _well(machine)
    assert service.daemon(machine).result is OK
    vars(machine)["daemon"] = status | {"daemon": status["daemon"] | {"version": "0.0.1"}}
    assert service.daemon(machine).result is WARNING
    vars(machine)["daemon"] = status | {"reload_error": "nri-rdma: SETTING: bad"}
    assert service.daemon(machine).result is WARNING
    vars(machine)["daemon"] = status | {"unserved": [{"pod": "ml/train", "why": "late"}]}
    assert "pods run without what they ask for: ml/train" in service.daemon(machine).found
    vars(machine)["daemon"] = status | {"sandboxes": [{"pod": "ml/train", "undo_error": "EBUSY"}]}
    assert "devices of ml/train are not home: EBUSY" in service.daemon(machine).found
    vars(machine)["daemon"] = status | {"guard": {"active": "createRuntime hook", "asked": 4}}
    assert guard.guard(machine).result is OK


def test_a_pod_that_runs_without_its_devices_makes_the_daemon_a_problem(bench: Bench, daemon: InsideDaemon) -> None:
    pod = Pod(sandbox_id="s", uid="u", name="train", namespace="ml", netns_path="/run/netns/x")
    annotations = {"rdma.noderesource.dev/pod": "1"}
    listed = Listed(pod=pod, annotations=annotations, containers=(ListedContainer(name="main", devices={}),))
    daemon.engine.synchronize((listed,)).result(5)
    bench.settings = daemon.settings
    assert "ml/train" in bench.finds(service.daemon).found


def test_a_state_directory_on_a_tmpfs_is_fine_and_none_is_made(bench: Bench) -> None:
    found = bench.finds(service.state)
    assert (found.result, found.found.endswith("is writable, on tmpfs")) == (OK, True)
    assert not bench.settings.state_dir.exists()
    bench.mounts("ext4")
    assert bench.finds(service.state).result is WARNING


def test_journal_records_that_were_set_aside_are_a_problem(bench: Bench) -> None:
    journal = bench.settings.state_dir / "journal"
    Journal(journal)
    (journal / "abc.json").write_text("{")
    Journal(journal).load()
    found = bench.finds(service.state)
    assert (found.result, "abc.unreadable" in found.found) == (PROBLEM, True)


def test_a_state_directory_that_is_no_directory_is_a_problem(bench: Bench) -> None:
    bench.settings = replace(bench.settings, state_dir=bench.write("run/file", "") / "state")
    assert bench.finds(service.state).result is PROBLEM
    bench.user = 1000
    assert bench.finds(service.state).result is NA


def test_a_cdi_file_that_cannot_be_used_is_a_warning_with_its_file(bench: Bench) -> None:
    assert bench.finds(service.cdi).result is OK
    file = bench.write("etc/cdi/bad.json", "{")
    found = bench.finds(service.cdi)
    assert (found.result, str(file) in found.found) == (WARNING, True)


def test_who_configures_links_too_is_told(bench: Bench) -> None:
    assert bench.finds(service.links).found == "nobody else configures netdevs that come home"
    (bench.run / "systemd/netif").mkdir(parents=True)
    found = bench.finds(service.links)
    assert (found.result, "/run/udev" in found.fix) == (WARNING, True)
    bench.write("run/udev/control", "")
    (bench.run / "NetworkManager").mkdir()
    found = bench.finds(service.links)
    assert (found.result, found.found.startswith("udev and networkd and NetworkManager")) == (OK, True)


# All of them


def test_no_two_checks_have_one_name_and_each_fault_has_a_fix(bench: Bench) -> None:
    bench.change_node(devices=(), rdma_netns=RdmaNetns.NONE)
    findings = examine(bench.machine)
    assert len({it.check for it in findings}) == len(CHECKS)
    assert all(it.fix for it in findings if it.result in {PROBLEM, WARNING})


def test_the_doctor_changes_no_file(bench: Bench) -> None:
    before = sorted(bench.folder.rglob("*"))
    examine(bench.machine)
    assert sorted(bench.folder.rglob("*")) == before


def _flags(bench: Bench, eight: Path) -> list[str | Path]:
    return [
        *("--nri-socket", bench.settings.nri_socket, "--state-dir", bench.settings.state_dir),
        *("--sysfs-root", eight, "--dev-root", bench.dev, "--cgroup-root", bench.cgroup),
    ]


def test_the_command_ends_with_1_for_problems_and_tells_them_to_programs(bench: Bench, eight: Path) -> None:
    done = nri_rdma("doctor", "-o", "json", *_flags(bench, eight))
    document = json.loads(done.stdout)
    by_name = {it["check"]: it for it in document["checks"]}
    assert done.returncode == 1
    assert by_name["devices"]["found"].startswith("8 RDMA devices")
    assert by_name["NRI socket"]["result"] == "problem"
    assert document["problems"] == sum(1 for it in document["checks"] if it["result"] == "problem")


def test_warnings_count_when_it_is_strict(bench: Bench, eight: Path) -> None:
    for strict, code in ((False, 0), (True, 1)):
        with served(FakeRuntime(bench.settings.nri_socket)):
            done = nri_rdma("doctor", *_flags(bench, eight), *(["--strict"] if strict else []))
        bench.settings.nri_socket.unlink()
        assert done.returncode == code, done.stdout
        assert "fix: set the hook up as docs/guard.md says" in " ".join(done.stdout.split())
        assert "0 problems" in done.stdout
        assert "Nothing was changed." in done.stdout


def test_a_bad_file_is_a_finding_and_a_bad_flag_a_usage_error(bench: Bench, eight: Path) -> None:
    file = bench.write("bad.toml", "\nno_such_setting = 1\n")
    done = nri_rdma("doctor", "--config", file, *_flags(bench, eight), columns=200)
    assert done.returncode == 1
    assert f"problem  configuration  {file}:2: unknown setting no_such_setting" in done.stdout
    assert_one_error(nri_rdma("doctor", "--memlock", "much"), "SETTING", 2)

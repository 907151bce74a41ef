"""The node's software: a stock containerd with NRI, and the real daemon."""

import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.lab import outcomes
from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.machine import MODELS, SMALL
from tests.lab.outcomes import OutcomeError
from tests.lab.reports import FAILED, OUTCOME
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.cri import Cri, CriError
from tests.rig.deadline import wait_until
from tests.rig.image import IMAGE as PAUSE
from tests.rig.image import write_image

if "RDMA_LAB_RESULTS" not in os.environ:
    raise pytest.UsageError("these tests run in the lab's virtual machine. Next: make lab")

RESULTS = Path(os.environ["RDMA_LAB_RESULTS"])
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
NRI_SOCKET = Path("/var/run/nri/nri.sock")
STATE = Path("/run/nri-rdma")
MACHINE = os.environ["RDMA_LAB_MACHINE"]
KERNEL = outcomes.kernel_of(os.uname().release)
# Everything that is not said here is containerd's default. The machine is emulated and ten times slower than one of its
# own: where its host is busy, NRI's 2 s end before a device is home, and the CNI plugin's DEL comes first. What the
# daemon does when its time ends is tested without a machine (tests/unit/doors/nri/test_cases.py).
NRI_TIMEOUT = 'plugin_request_timeout = "20s"'
CONTAINERD_2 = f"""version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/run/lab/net.d"
use_internal_loopback = true
[plugins."io.containerd.nri.v1.nri"]
{NRI_TIMEOUT}
"""
CONTAINERD_1 = f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
enable_cdi = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/run/lab/net.d"
[plugins."io.containerd.nri.v1.nri"]
disable = false
{NRI_TIMEOUT}
"""
# Said, because 1.7 forgets its own where another handler is named.
WITHOUT_SYSTEMD = """[plugins."{plugin}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
# As a kubelet with cgroupDriver systemd wants it; crun is a second handler.
WITH_SYSTEMD = """[plugins."{plugin}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."{plugin}".containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins."{plugin}".containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
[plugins."{plugin}".containerd.runtimes.crun.options]
BinaryName = "/usr/bin/crun"
SystemdCgroup = true
"""
# Handlers with the network operator's plugin in the chain (cni_rdma.py): its start costs each pod a second. Their pods
# are many, and crun takes less time than runc where both are emulated: 50 pods took 154 s, not 250. Those of NOWHERE
# have it alone, as each plugin of Debian's costs a pod's start and end as much.
WITH_OPERATOR = """[plugins."{plugin}".containerd.runtimes.{handler}]
runtime_type = "io.containerd.runc.v2"
cni_conf_dir = "/run/lab/{handler}.d"
[plugins."{plugin}".containerd.runtimes.{handler}.options]
BinaryName = "/usr/bin/crun"
"""
# As docs/guard.md sets it up, with the operator's plugin.
WITH_GUARD = """[plugins."{plugin}".containerd.runtimes.{handler}]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{spec}"
pod_annotations = ["rdma.noderesource.dev", "rdma.noderesource.dev/*"]
cni_conf_dir = "/run/lab/{chain}.d"
"""
GUARDED_SPEC = Path("/run/lab/guarded.json")
HOOK = Path(__file__).resolve().parents[3] / "hooks/nri-rdma-hook"
KUBEPODS = "kubepods-besteffort.slice"
PTP = {"type": "ptp", "ipMasq": False, "ipam": {"type": "host-local", "ranges": [[{"subnet": "198.18.0.0/24"}]]}}
CNI_PLUGIN = Path("/usr/lib/cni/lab-rdma")
MAKES_RDMA = {"type": CNI_PLUGIN.name}
CNI_CHAINS = {"net.d": (PTP,), f"{verbs.OPERATOR}.d": (PTP, MAKES_RDMA), f"{verbs.NOWHERE}.d": (MAKES_RDMA,)}
DAEMON = (
    *(sys.executable, "-m", "nri_rdma", "run", "--nri-socket", str(NRI_SOCKET)),
    *("--sysfs-root", "/sys", "--dev-root", "/dev", "--memlock", "unlimited"),
    *("--config", str(Path(__file__).with_name("pools.toml"))),
    *("--state-dir", str(STATE), "--control-socket", str(STATE / "control.sock")),
)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A test of a row of outcomes.toml passes when it ends as that row says of this kernel."""
    marker = pyfuncitem.get_closest_marker("outcome")
    if marker is None:
        return (yield)
    row, seen, text = outcomes.load()[marker.args[0]], outcomes.WORKS, ""
    try:
        yield
    except OutcomeError as error:
        seen, text = error.outcome, str(error)
    if wrong := outcomes.complaint(row, KERNEL, seen):
        pytest.fail(f"{wrong}\n{text}")
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only what is this machine's. The report has the rows."""
    others = [item for item in items if MACHINE not in _machines_of(item)]
    items[:] = [item for item in items if MACHINE in _machines_of(item)]
    config.hook.pytest_deselected(items=others)
    for item in items:
        marker = item.get_closest_marker("outcome")
        if marker is not None:
            item.user_properties.append((OUTCOME, marker.args[0]))


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """What a test failed with, at once: a machine that does not get to pytest's end has told it nevertheless."""
    if call.excinfo is None or call.excinfo.errisinstance((pytest.skip.Exception, pytest.xfail.Exception)):
        return
    trace = "".join(traceback.format_exception(call.excinfo.value))
    terminal = item.config.get_terminal_writer()
    terminal.line(f"\n{trace}{FAILED}{item.name} ({call.when}): {' '.join(str(call.excinfo.value).split())}")


def _machines_of(item: pytest.Item) -> tuple[str, ...]:
    marker = item.get_closest_marker("machine")
    return marker.args if marker is not None else (SMALL.name,)


def containerd_config() -> str:
    """In the words of the installed containerd."""
    shown = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True).stdout
    config, plugin = CONTAINERD_2, "io.containerd.cri.v1.runtime"
    if re.search(r"\b1\.\d+\.\d+", shown):
        config, plugin = CONTAINERD_1, "io.containerd.grpc.v1.cri"
    handlers = (WITH_SYSTEMD if MODELS[MACHINE].systemd else WITHOUT_SYSTEMD).format(plugin=plugin)
    operators = (WITH_OPERATOR.format(plugin=plugin, handler=handler) for handler in (verbs.OPERATOR, verbs.NOWHERE))
    guarded = WITH_GUARD.format(plugin=plugin, handler=verbs.GUARDED, spec=GUARDED_SPEC, chain=verbs.OPERATOR)
    return "".join((config, handlers, *operators, guarded))


def write_guarded_spec() -> None:
    """What containerd starts guarded containers from."""
    base = subprocess.run(["ctr", "oci", "spec"], capture_output=True, text=True, check=True).stdout
    command = [str(HOOK), "spec", "--control-socket", str(STATE / "control.sock")]
    GUARDED_SPEC.write_text(subprocess.run(command, input=base, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="session")
def containerd() -> Iterator[Server]:
    """containerd that takes pods, with the pause image and the workload's."""
    for folder, plugins in CNI_CHAINS.items():
        (Path("/run/lab") / folder).mkdir()
        chain = {"cniVersion": "1.0.0", "name": "lab", "plugins": plugins}
        (Path("/run/lab") / folder / "10-lab.conflist").write_text(json.dumps(chain))
    write_guarded_spec()
    config = Path("/run/lab/containerd.toml")
    config.write_text(containerd_config())
    shutil.copyfile(Path(__file__).with_name("cni_rdma.py"), CNI_PLUGIN)
    CNI_PLUGIN.chmod(0o755)
    with Server(("containerd", "--config", str(config)), RESULTS / "containerd.log") as server:
        wait_until(lambda: server.has_logged("containerd successfully booted"), "containerd to boot", seconds=60)
        pause = Path("/run/lab/pause.tar")
        write_image(Path("/usr/bin/busybox"), pause)
        for archive in (pause, Path("/usr/lib/lab/images/workload.tar")):
            subprocess.run(["ctr", "-n", "k8s.io", "images", "import", str(archive)], check=True)
        yield server


@pytest.fixture(scope="session")
def cri(containerd: Server) -> Iterator[Cri]:
    """A client of a runtime that is ready; no pod is left behind."""
    with Cri(CONTAINERD_SOCKET, cgroup_parent=KUBEPODS if MODELS[MACHINE].systemd else "") as client:
        wait_until(lambda: is_ready(client), "containerd to take pods", seconds=60)
        wait_until(lambda: client.has_image(PAUSE) and client.has_image(WORKLOAD), "CRI to know the images", seconds=30)
        print(client.version())
        yield client
        for sandbox in client.pods():
            client.delete_pod(sandbox)


@pytest.fixture(scope="session")
def rdma_devices() -> tuple[str, ...]:
    """The names of the machine's soft-RoCE devices, once their ports are up."""
    names = tuple(device.name for device in MODELS[MACHINE].node.rdma)
    wait_until(
        lambda: {link["ifname"] for link in kernel.rdma_links() if link["state"] == "ACTIVE"} >= set(names),
        f"active ports of {', '.join(names)}",
        seconds=30,
    )
    return names


@pytest.fixture(scope="session")
def rdma_device(rdma_devices: tuple[str, ...]) -> str:
    """The first of them."""
    return rdma_devices[0]


@pytest.fixture(scope="session")
def daemon(containerd: Server, cri: Cri, rdma_devices: tuple[str, ...]) -> Iterator[Server]:
    """The product, as the runtime knows it."""
    with Server(DAEMON, RESULTS / "nri-rdma.log") as server:
        wait_until(lambda: _is_registered(server, containerd), "the daemon to be registered", seconds=60)
        yield server


def _is_registered(daemon: Server, containerd: Server) -> bool:
    """The runtime's word, not the product's own: the plugin is registered and has answered Synchronize."""
    daemon.check_runs()
    return containerd.has_logged(r"plugin \S*nri-rdma\S* connected(?: and|\"$)")  # 2.x | 1.7


def is_ready(client: Cri) -> bool:
    """Whether the runtime takes pods."""
    try:
        return not client.unready(seconds=10)
    except CriError as error:
        if error.code in {"UNAVAILABLE", "UNIMPLEMENTED", "UNKNOWN"}:
            return False
        raise

"""Limits of the rdma cgroup with what CRI-O has by default: crun, and cgroups of systemd.

CRI-O is not Debian's: the lab takes what tests/rig/build_runtimes.py built. It starts a container whatever
StartContainer is answered (docs/adr/0052).
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import DAEMON, KUBEPODS, PTP, RESULTS, is_ready
from tests.lab.guest.process import Server
from tests.lab.guest.test_limits import another_device, assert_cgroups_of_the_host, lines
from tests.lab.guest.test_share_limits import HANDLES, OBJECTS, allocated, device_with_shares
from tests.lab.workload import NAME as WORKLOAD
from tests.rig import cache
from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.deadline import wait_until
from tests.rig.image import IMAGE, PAUSE, write_image

CRIO = next((it for it in cache.built() if it.is_crio), None)
pytestmark = [
    pytest.mark.machine("systemd"),
    pytest.mark.skipif(CRIO is None, reason="CRI-O is not built. Next: python -m tests.rig.build_runtimes cri-o-1.36"),
]
RUN = Path("/run/lab/crio")
SOCKET, NRI, HOOKS, STATE = RUN / "crio.sock", RUN / "nri.sock", RUN / "hooks", RUN / "daemon"
LIMIT = verbs.asks("mode: shared, limits: {hcaObjects: 4}")
GUARDED = {"guarded": "yes"}
HOOK = cache.PROJECT / "hooks/nri-rdma-hook"
CONFIG = f"""[crio]
root = "{RUN}/root"
runroot = "{RUN}/storage"
storage_driver = "overlay"
version_file = "{RUN}/version"
version_file_persist = ""
clean_shutdown_file = "{RUN}/clean"
[crio.api]
listen = "{SOCKET}"
[crio.runtime]
default_runtime = "crun"
cgroup_manager = "systemd"
pinns_path = "{{programs}}/pinns"
namespaces_dir = "{RUN}/pinned"
hooks_dir = ["{HOOKS}"]
container_exits_dir = "{RUN}/exits"
container_attach_socket_dir = "{RUN}/attach"
apparmor_profile = "unconfined"
disable_hostport_mapping = true
irqbalance_config_restore_file = "disable"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
runtime_root = "{RUN}/crun"
monitor_path = "{{programs}}/conmon"
[crio.image]
pause_image = "{IMAGE}"
pause_command = "{PAUSE}"
signature_policy = "{RUN}/policy.json"
[crio.network]
network_dir = "{RUN}/net.d"
plugin_dirs = ["/usr/lib/cni"]
[crio.nri]
enable_nri = true
nri_listen = "{NRI}"
nri_plugin_dir = "{RUN}/none"
nri_plugin_config_dir = "{RUN}/none"
nri_plugin_request_timeout = "20s"
"""


@pytest.fixture(scope="module")
def cri() -> Iterator[Cri]:
    """A client of CRI-O that is ready; no pod is left behind."""
    assert CRIO is not None  # the tests are skipped
    for name in ("hooks", "net.d", "logs"):
        (RUN / name).mkdir(parents=True)
    chain = {"cniVersion": "1.0.0", "name": "crio", "plugins": [PTP]}
    (RUN / "net.d/10-crio.conflist").write_text(json.dumps(chain).replace("198.18.0.", "198.19.0."))
    hook = {"path": str(HOOK), "args": [HOOK.name, "verify", "--control-socket", str(STATE / "control.sock")]}
    when = {"annotations": {f"^{key}$": value for key, value in GUARDED.items()}}
    hooked = {"version": "1.0.0", "hook": hook, "when": when, "stages": ["createRuntime"]}
    (HOOKS / "guard.json").write_text(json.dumps(hooked))
    (RUN / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
    (RUN / "crio.toml").write_text(CONFIG.format(programs=CRIO.folder))
    write_image(Path("/usr/bin/busybox"), RUN / "pause.tar")
    for image, archive in ((IMAGE, RUN / "pause.tar"), (WORKLOAD, Path("/usr/lib/lab/images/workload.tar"))):
        _import(CRIO.folder / "copyimg", image, archive)
    command = (str(CRIO.server), "--config", str(RUN / "crio.toml"), "--config-dir", "")
    client = Cri(SOCKET, cgroup_parent=KUBEPODS, log_directory=RUN / "logs")
    with Server(command, RESULTS / "crio.log"), client:
        wait_until(lambda: SOCKET.exists() and is_ready(client), "CRI-O to take pods", seconds=60)
        yield client
        for sandbox in client.pods():
            client.delete_pod(sandbox)


@pytest.fixture
def daemon(cri: Cri, rdma_devices: tuple[str, ...]) -> Iterator[Server]:
    """The product, as CRI-O knows it."""
    own = {"--nri-socket": NRI, "--state-dir": STATE, "--control-socket": STATE / "control.sock"}
    command = list(DAEMON)
    for flag, value in own.items():
        command[command.index(flag) + 1] = str(value)
    with Server(command, RESULTS / "nri-rdma-crio.log") as server:
        wait_until(lambda: server.has_logged("synchronized runtime"), "the daemon to be registered", seconds=60)
        yield server


def test_the_kernel_holds_a_container_to_its_limits(cri: Cri, daemon: Server, rdma_device: str) -> None:
    look_and_fill = f"cat /sys/fs/cgroup/rdma.max >/tmp/look; exec verbs-probe objects {rdma_device} 16 >/tmp/got"
    with _pod(cri, "limited", LIMIT) as sandbox:
        container = verbs.start(cri, sandbox, "main", ["sh", "-c", look_and_fill])
        assert _told(cri, container, "/tmp/got") == "4 EAGAIN"
        assert f"{rdma_device} hca_handle=max hca_object=4" in lines(_told(cri, container, "/tmp/look"))


def test_a_share_starts_with_its_part(cri: Cri, daemon: Server, rdma_device: str) -> None:
    with device_with_shares(rdma_device, STATE) as kubelet, _pod(cri, "share", {}) as sandbox:
        container = verbs.start(cri, sandbox, "main", annotations=allocated(kubelet, 0))
        limits = kernel.cgroup_file(cri.container_status(container).pid, "rdma.max")
        assert f"shared0 hca_handle={HANDLES} hca_object={OBJECTS}" in lines(limits)


def test_a_pod_with_the_charts_mounts_reads_and_writes_the_hosts_cgroups(cri: Cri) -> None:
    assert_cgroups_of_the_host(cri)


def test_a_container_that_cannot_be_limited_does_not_run(cri: Cri, daemon: Server, rdma_device: str) -> None:
    """A device that nobody was limited on: older kernels may not survive that another one goes (docs/adr/0012)."""
    with another_device(rdma_device, STATE) as device:
        limit = verbs.asks(f"mode: shared, match: {{device: {device}}}, limits: {{hcaObjects: 4}}")
        with _pod(cri, "without", limit) as sandbox:
            container = verbs.create(cri, sandbox, "main")
            kernel.rdma("link", "delete", device)
            try:
                with pytest.raises(CriError):
                    cri.start(container)
            finally:
                kernel.rdma("link", "add", device, "type", "rxe", "netdev", "second")
            with pytest.raises(CriError, match="NOT_FOUND"):  # CRI-O removes what it could not start
                cri.container_status(container)


def test_without_the_guard_limits_come_when_the_daemon_is_back(cri: Cri, daemon: Server, rdma_device: str) -> None:
    with _pod(cri, "away", LIMIT) as sandbox:
        container = verbs.create(cri, sandbox, "main")
        os.kill(daemon.pid, signal.SIGKILL)
        cri.start(container)
        limits = Path(f"/proc/{cri.container_status(container).pid}/root/sys/fs/cgroup/rdma.max")
        assert not limits.exists(), "crun gives it no rdma controller"
        daemon.kill_and_start()
        limited = f"{rdma_device} hca_handle=max hca_object=4"
        wait_until(lambda: limits.exists() and limited in lines(limits.read_text()), "the limits", seconds=60)


def test_with_the_guard_limits_hold_also_when_the_daemon_dies_before_the_start(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    with _pod(cri, "guarded", LIMIT | GUARDED) as sandbox:
        look = ["sh", "-c", "cat /sys/fs/cgroup/rdma.max >/tmp/look; exec sleep 1000"]
        container = verbs.create(cri, sandbox, "main", look)
        os.kill(daemon.pid, signal.SIGKILL)
        cri.start(container)
        assert f"{rdma_device} hca_handle=max hca_object=4" in lines(_told(cri, container, "/tmp/look"))


@contextmanager
def _pod(cri: Cri, name: str, annotations: dict[str, str]) -> Iterator[Sandbox]:
    """A pod for a while. Its containers are killed at the end: CRI-O asks them for two minutes first."""
    with verbs.pod(cri, name, annotations) as sandbox:
        try:
            yield sandbox
        finally:
            for container in cri.containers(sandbox):
                cri.stop_container(container)


def _told(cri: Cri, container: Container, file: str) -> str:
    """What the container's program wrote into its file."""
    return wait_until(lambda: cri.exec(container, ["cat", file]).stdout.strip() or None, f"{file} to be written", 30)


def _import(copyimg: Path, image: str, archive: Path) -> None:
    """With CRI-O's own copyimg, below a /var/lib of its own: it keeps a cache there, whatever it is told."""
    places = ("--root", f"{RUN}/root", "--runroot", f"{RUN}/storage", "--storage-driver", "overlay")
    what = (
        "--signature-policy",
        f"{RUN}/policy.json",
        "--image-name",
        image,
        "--import-from",
        f"oci-archive:{archive}",
    )
    alone = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /var/lib && exec "$@"', "-")
    subprocess.run((*alone, str(copyimg), *places, *what), check=True)

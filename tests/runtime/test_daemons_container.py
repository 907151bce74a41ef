"""doctor in a container as a kubelet makes one for the daemon, with one right, namespace or mount taken away each."""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.rig import cache
from tests.rig.daemon import PROJECT
from tests.rig.fabric import Fabric

pytestmark = [pytest.mark.root, pytest.mark.runtime]

CONFIG = """\
guard_hook = "/etc/nri-rdma/hook"
guard_resource = "rdma.noderesource.dev/guard"
verbs_python = ""

[pools.shares]
door = "resource"
resource = "rdma/hca"
shares = 4
modes = ["shared"]
select = {device = ["mlx5_0"]}

[pools.nics]
door = "claims"
modes = ["exclusive", "shared"]
select = {device = ["mlx5_1"]}
"""
KUBELET = "/var/lib/kubelet"
NETNS, CDI, NRI, UDEV, CGROUP = "/var/run/netns", "/var/run/cdi", "/var/run/nri", "/run/udev", "/sys/fs/cgroup"
STATE, CONTAINERD = "/run/nri-rdma", "/run/containerd"
ALL = {NETNS: "rslave", KUBELET: "rslave", **dict.fromkeys((CDI, NRI, UDEV, CGROUP, STATE), "rprivate")}
OF_IMAGE = ("/usr", "/lib", "/lib64", "/bin", str(Path(sysconfig.get_path("stdlib"))), str(PROJECT))


@dataclass
class Container:
    """What the daemon's container has; a test takes one thing away."""

    mounts: dict[str, str] = field(default_factory=lambda: ALL)
    read_only: set[str] = field(default_factory=set)
    capabilities: tuple[str, ...] = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN")
    has_own_network: bool = False
    has_hook: bool = True


class Node:
    """A host for one container after another: its folders are below `folder`, which is a mount that others follow."""

    def __init__(self, folder: Path, fabric: Fabric) -> None:
        self.folder, self._fabric = folder, fabric
        self.host, self._root = folder / "host", folder / "root"
        for name in ("plugins", "plugins_registry", "device-plugins", "pod-resources"):
            self.of_host(KUBELET, name).mkdir(parents=True)
        for name in ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock", "dra_manager_state"):
            self.of_host(KUBELET, name).touch()
        self.of_host(UDEV).mkdir(parents=True)
        self.of_host(UDEV, "control").touch()
        for path in (CDI, NRI, STATE, NETNS):
            self.of_host(path).mkdir(parents=True, exist_ok=True)
        self.of_host(CGROUP).mkdir(parents=True)
        for name, text in (("cgroup.controllers", "rdma"), ("cgroup.subtree_control", "rdma")):
            self.of_host(CGROUP, name).write_text(text)
        (folder / "config.toml").write_text(CONFIG)
        (folder / "hook").touch()

    def of_host(self, path: str, *names: str) -> Path:
        """The host's file that the container may have at this path."""
        return self.host.joinpath(path.removeprefix("/"), *names)

    def doctor(self, container: Container, *flags: str) -> dict[str, tuple[str, str, str]]:
        """The result, the finding and the fix of each check."""
        done = self._run(container, *flags)
        assert done.returncode in {0, 1}, done.stderr + done.stdout
        return {it["check"]: (it["result"], it["found"], it["fix"]) for it in json.loads(done.stdout)["checks"]}

    def _run(self, container: Container, *flags: str) -> subprocess.CompletedProcess[str]:
        bundle = self.folder / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "config.json").write_text(json.dumps(self._spec(container, flags)))
        command = [str(cache.RUNC), "--root", str(self.folder / "runc"), "run", "--bundle", str(bundle), "doctor"]
        return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def _spec(self, container: Container, flags: tuple[str, ...]) -> dict[str, Any]:
        program = (sys.executable, "-m", "nri_rdma", "doctor", "-o", "json", "--config", "/etc/nri-rdma/config.toml")
        tree = ("--sysfs-root", str(self._fabric.sysfs), "--dev-root", str(self._fabric.dev))
        own = [{"type": kind} for kind in ("mount", "ipc", "uts")]
        if container.has_own_network:
            own.append({"type": "network"})
        self._root.mkdir(exist_ok=True)
        capabilities = dict.fromkeys(("bounding", "effective", "permitted"), container.capabilities)
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": [*program, *tree, *flags],
                "env": ["PATH=/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1", "COLUMNS=500"],
                "cwd": str(PROJECT),
                "capabilities": capabilities,
                "noNewPrivileges": True,
            },
            "root": {"path": str(self._root), "readonly": True},
            "mounts": [*self._mounts(container)],
            "linux": {"namespaces": own, "rootfsPropagation": "rslave", "readonlyPaths": ["/proc/sys"]},
        }

    def _mounts(self, container: Container) -> Iterator[dict[str, Any]]:
        yield {"destination": "/proc", "type": "proc", "source": "proc"}
        yield {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]}
        yield {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]}
        for path in OF_IMAGE:
            yield _bind(Path(path), path, "rprivate", is_read_only=True)
        yield _bind(self._fabric.run, str(self._fabric.run), "rprivate", is_read_only=True)
        for path in ("/etc/hosts", "/dev/termination-log"):
            yield _bind(self.folder / "hook", path, "rprivate")
        for name in ("config.toml", *(["hook"] if container.has_hook else [])):
            yield _bind(self.folder / name, f"/etc/nri-rdma/{name}", "rprivate", is_read_only=True)
        for path, propagation in container.mounts.items():
            yield _bind(self.of_host(path), path, propagation, is_read_only=path in container.read_only)


def _bind(source: Path, path: str, propagation: str, *, is_read_only: bool = False) -> dict[str, Any]:
    options = ["rbind", propagation, "ro" if is_read_only else "rw"]
    return {"destination": path, "type": "bind", "source": str(source), "options": options}


@pytest.fixture(scope="module")
def host(node: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    subprocess.run(["mount", "--make-shared", folder], check=True)
    try:
        yield Node(folder, node)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


CHECKS = (
    *("privileges", "sysctls", "host network", "rdma cgroup", "mounts", "CDI folder", "device-plugins", "claims"),
    *("pod-resources", "state", "links"),
)


def without(*paths: str, **others: str) -> dict[str, str]:
    """The mounts without some of them, and with others."""
    return {path: how for path, how in (ALL | others).items() if path not in paths}


PARTS = dict.fromkeys(
    (f"{KUBELET}/{name}" for name in ("plugins", "plugins_registry", "device-plugins", "pod-resources")), "rprivate"
)
FAULTS: dict[str, tuple[Container, dict[str, tuple[str, str, str]]]] = {
    "nothing": (Container(), {}),
    "NET_ADMIN": (
        Container(capabilities=("CAP_SYS_ADMIN",)),
        {"privileges": ("problem", "CAP_NET_ADMIN is missing: ", "add NET_ADMIN to securityContext.capabilities")},
    ),
    "SYS_ADMIN": (
        Container(capabilities=("CAP_NET_ADMIN",)),
        {
            "privileges": ("problem", "CAP_SYS_ADMIN is missing: ", "add SYS_ADMIN to securityContext.capabilities"),
            "sysctls": ("problem", "this process may not mount a procfs", "add SYS_ADMIN to securityContext"),
        },
    ),
    "host network": (
        Container(has_own_network=True),
        {"host network": ("problem", "this container is not in the host's network namespace", "hostNetwork: true")},
    ),
    "propagation": (
        Container(mounts=ALL | {NETNS: "rprivate"}),
        {"mounts": ("problem", "mounts that the runtime makes in /run/netns do not reach", "HostToContainer")},
    ),
    "netns": (
        Container(mounts=without(NETNS)),
        {"mounts": ("problem", "the host's /run/netns is not mounted into this container", "HostToContainer")},
    ),
    "CDI": (
        Container(mounts=without(CDI)),
        {"CDI folder": ("problem", "pods with claims of pool nics do not start and pods that ask", f"hostPath {CDI}")},
    ),
    "CDI, writable": (
        Container(read_only={CDI}),
        {"CDI folder": ("problem", f"{CDI} cannot be written: ", f"hostPath {CDI} there, writable")},
    ),
    "kubelet": (
        Container(mounts=without(KUBELET)),
        {
            "claims": ("problem", "pods with claims of pool nics do not start", f"hostPath {KUBELET} there"),
            "device-plugins": ("problem", "pods that ask for it stay Pending", f"hostPath {KUBELET}/device-plugins"),
            "pod-resources": ("warning", "pods are placed without", f"hostPath {KUBELET}/pod-resources there"),
        },
    ),
    "hook": (
        Container(has_hook=False),
        {"device-plugins": ("warning", "/etc/nri-rdma/hook is not mounted from the host", "mount hostPath /etc/nri")},
    ),
    "kubelet, whole": (
        Container(mounts=without(KUBELET, **PARTS)),
        {"claims": ("problem", f"the kubelet's {KUBELET} is not mounted into this container as a whole", "hostPath")},
    ),
    "kubelet, propagation": (
        Container(mounts=ALL | {KUBELET: "rprivate"}),
        {"claims": ("warning", "it keeps volumes of ended pods mounted", "HostToContainer")},
    ),
    "NRI": (
        Container(mounts=without(NRI)),
        {"NRI socket": ("problem", f"the host's {NRI} is not mounted into this container", f"mount hostPath {NRI}")},
    ),
    "udev": (
        Container(mounts=without(UDEV)),
        {"links": ("warning", "the host's /run/udev is not mounted into this container", "mount hostPath /run/udev")},
    ),
    "cgroups, writable": (
        Container(read_only={CGROUP}),
        {"rdma cgroup": ("warning", f"{CGROUP} is read-only here", f"mount hostPath {CGROUP}, writable")},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_taken_away_is_named_with_what_follows_and_how_to_give_it_back(host: Node, name: str) -> None:
    container, expected = FAULTS[name]
    found = host.doctor(container)
    for check, (result, words, fix) in expected.items():
        told = found[check]
        assert (told[0], words in told[1], fix in told[2]) == (result, True, True), told
    others = {check: told for check, told in found.items() if check in CHECKS and check not in expected}
    assert {check for check, told in others.items() if told[0] in {"problem", "warning"}} == set(), others

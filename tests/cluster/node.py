"""A node: a machine with containerd, a kubelet and nri-rdma, each with its files and sockets where they usually are."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from typing import Any

from tests.cluster.machine import Machine, Program
from tests.cluster.programs import Programs
from tests.rig import cache
from tests.rig.deadline import wait_until
from tests.rig.image import IMAGE, write_image
from tests.rig.kubelet import PATIENT
from tests.rig.node import load

CRI = Path("/run/containerd/containerd.sock")
_CTR = (str(cache.CTR), "-a", str(CRI), "-n", "k8s.io")
_START_S = 60.0
_REGISTERED = "registered with the kubelet"


class Node:
    """One node. What it is called is the kubelet's name for it, and the machine's."""

    def __init__(
        self,
        machine: Machine,
        programs: Programs,
        kubeconfig: Path,
        address: str,
        pods: str,
        described: str,
        config: str,
        kubelet: Mapping[str, Any],
        images: tuple[Path, ...],
    ) -> None:
        """`described` is the name of its hardware, `config` the text of nri-rdma's configuration file, if it has one,
        `kubelet` are settings of the kubelet. One that aligns sees the sockets of the described hardware. With archives
        of `images` no nri-rdma is started: one of them has it."""
        self.machine = machine
        self.name = machine.name
        self._programs = programs
        self._kubeconfig = kubeconfig
        self.credentials = kubeconfig
        """The file with which nri-rdma reaches the API server; the kubelet's, unless a test has another one."""
        self._address = address
        self._pods = pods
        self._described = described
        self._config = config
        self._settings = kubelet
        self._images = images
        self.hardware: dict[str, str] = {}
        """The folders of the described hardware: `sysfs`, `dev` and `proc`."""

    def start(self) -> None:
        """Start all of it, in a machine that has booted; the kubelet is the last."""
        self._start_hardware()
        if "topologyManagerPolicy" in self._settings:
            self._show_sockets()
        self._start_containerd()
        if not self._images:
            self.start_daemon()
        self.start_kubelet()

    def nri_rdma(self, *arguments: str, fails: bool = False) -> str:
        """Run a command of nri-rdma on the node, and return what it printed."""
        return self.machine.run(sys.executable, "-m", "nri_rdma", *arguments, fails=fails)

    def start_daemon(self) -> Program:
        """Start `nri-rdma run`, with defaults but for the described hardware and for its patience with the
        kubelet, which starts 64 pods at once here on two processors."""
        roots = [f"--{name}-root={path}" for name, path in self.hardware.items()]
        before = self._told("synchronized")
        file = self.machine.folder / "config.toml"
        file.write_text(self._written())
        offers = ["--config", str(file)] if self._config else ["--allow-default-pool"]
        daemon = self.machine.start(
            "nri-rdma", sys.executable, "-m", "nri_rdma", "run", *roots, "--memlock", "8388608", *PATIENT, *offers
        )
        wait_until(lambda: self._told("synchronized") > before, f"nri-rdma on {self.name} ({daemon.log})", _START_S)
        return daemon

    def start_driver(self) -> None:
        """Start `nri-rdma run` with a configuration that has pools for claims, and wait until the kubelet has
        registered their driver: it prepares nothing before, and tries again after a minute."""
        before = self._told(_REGISTERED)
        self.start_daemon()
        wait_until(lambda: self._told(_REGISTERED) > before, f"the driver of claims on {self.name}", _START_S)

    def _written(self) -> str:
        """Return the configuration's text; THIS_NODE and KUBECONFIG stand for the node's name, and its credentials."""
        return self._config.replace("THIS_NODE", self.name).replace("KUBECONFIG", str(self.credentials))

    def _told(self, words: str) -> int:
        """How often daemons of this node have logged these words."""
        log = self.machine.folder / "log/nri-rdma.log"
        return log.read_text().count(words) if log.exists() else 0

    def _start_hardware(self) -> None:
        """Make the described node's links and trees; they are the machine's for as long as that program runs."""
        log = self.machine.folder / "log/hardware.log"
        log.write_text("")  # before a reboot it had others
        self.machine.start("hardware", sys.executable, "-m", "tests.cluster.hardware", self._described)
        wait_until(lambda: log.read_text().endswith("}\n"), f"the links of {self.name} ({log})", _START_S)
        self.hardware = json.loads(log.read_text().splitlines()[-1])

    def _show_sockets(self) -> None:
        """Have the kubelet find as many NUMA nodes as the described hardware has sockets, and deal this machine's
        processors out to them: it passes over devices on a node that it does not know."""
        nodes, count = self.machine.folder / "numa", load(self._described).sockets
        for number in range(count):
            node = nodes / f"node{number}"
            (node / "hugepages").mkdir(parents=True, exist_ok=True)
            (node / "meminfo").write_text(f"Node {number} MemTotal: 4194304 kB\n")
            (node / "distance").write_text(" ".join("10" if it == number else "21" for it in range(count)) + "\n")
        for number in range(os.cpu_count() or 1):
            link = nodes / f"node{number % count}/cpu{number}"
            if not link.is_symlink():  # before a reboot it was
                link.symlink_to(f"../../cpu/cpu{number}")
        self.machine.run("mount", "--bind", nodes, "/sys/devices/system/node")

    def _start_containerd(self) -> None:
        folder = self.machine.folder
        (folder / "cni").mkdir(exist_ok=True)
        (folder / "cni/10-pods.conflist").write_text(json.dumps(_network(self._pods)))
        (folder / "containerd.toml").write_text(_CONTAINERD.format(folder=folder, image=IMAGE, **_PLACES))
        release = cache.CONTAINERD_2_3
        path = f"{release.folder}:/usr/sbin:/usr/bin:/sbin:/bin"
        containerd = self.machine.start(
            "containerd", release.server, "--config", folder / "containerd.toml", environment={"PATH": path}
        )
        asks = (*_CTR, "version")
        wait_until(lambda: "Server:" in self.machine.run(*asks, fails=True), f"containerd ({containerd.log})", _START_S)
        archive = folder / "image.tar"
        if not archive.exists():
            write_image(cache.busybox(), archive)
        for given in (archive, *self._images):
            self.machine.run(*_CTR, "images", "import", "--local", given, seconds=300)

    def load_image(self, name: str, scripts: Mapping[str, str]) -> None:
        """Give the node an image with busybox and these scripts in /bin."""
        archive = self.machine.folder / "more.tar"
        write_image(cache.busybox(), archive, name, scripts)
        self.machine.run(*_CTR, "images", "import", "--local", archive)
        archive.unlink()

    def start_gpus(self, resource: str, replicas: int = 1) -> None:
        """Serve the GPUs of the described node to the kubelet as that resource, each to so many containers."""
        asked = ("-m", "tests.cluster.gpus", self._described, resource, str(replicas))
        served = self.machine.start("gpus", sys.executable, *asked)
        wait_until(lambda: "registered" in served.log.read_text(), f"the GPUs of {self.name} ({served.log})", _START_S)

    def start_gpu_driver(self) -> None:
        """Serve claims for GPUs; their ResourceSlice is for the test to write."""
        served = self.machine.start("gpu-driver", sys.executable, "-m", "tests.cluster.gpu_driver")
        wait_until(lambda: "registered" in served.log.read_text(), f"the driver of GPUs ({served.log})", _START_S)

    def kill(self, name: str, number: Signals = Signals.SIGKILL) -> None:
        """End a program of the node, and no longer expect it to run."""
        self.machine.programs.pop(name).end(number)

    def remove_twins(self) -> None:
        """Remove what is left of sandboxes whose start was broken off when the kubelet was killed: containerd does not
        start again while two have one name (its issue 9459)."""
        newest: dict[str, str] = {}
        for it in sorted(map(self._container, self.machine.run(*_CTR, "containers", "ls", "-q").split()), key=_created):
            labels = it.get("Labels") or {}
            if labels.get("io.cri-containerd.kind") != "sandbox":
                continue
            pod = labels["io.kubernetes.pod.uid"]
            if pod in newest:
                self.machine.run(*_CTR, "containers", "rm", newest[pod])
            newest[pod] = it["ID"]

    def _container(self, container_id: str) -> dict[str, Any]:
        """What containerd has of a container; nothing where it has just ended."""
        told = self.machine.run(*_CTR, "containers", "info", container_id, fails=True)
        return json.loads(told) if told.startswith("{") else {}

    def kill_container(self, container_id: str) -> None:
        """Kill a container's process, as when it crashes; the id is that of the pod's status."""
        self.machine.run(*_CTR, "task", "kill", "--signal", "SIGKILL", container_id.removeprefix("containerd://"))

    def start_kubelet(self) -> None:
        """Start the kubelet; it is ready some seconds later."""
        folder = self.machine.folder
        (folder / "manifests").mkdir(exist_ok=True)
        (folder / "kubelet.json").write_text(json.dumps({**_kubelet(folder), **self._settings}, indent=1))
        self.machine.start(
            "kubelet",
            self._programs["kubelet"],
            f"--config={folder}/kubelet.json",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._address}",
            "--v=2",
        )


def _created(container: Mapping[str, Any]) -> str:
    return str(container.get("CreatedAt", ""))


_PLACES = {"plugins": cache.CNI_PLUGINS, "runc": cache.RUNC}
_CONTAINERD = """\
version = 3
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{folder}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
"""
"""containerd's own defaults but for what this kernel lacks, and the places of programs."""


def _network(subnet: str) -> Mapping[str, Any]:
    ranges, routes = [[{"subnet": subnet}]], [{"dst": "0.0.0.0/0"}]
    ipam = {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": ranges, "routes": routes}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}


def _kubelet(folder: Path) -> Mapping[str, Any]:
    nothing = {"memory.available": "1Mi"} | dict.fromkeys(
        ("nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"), "0%"
    )
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CRI}",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "oomScoreAdj": 0,  # a lower one needs CAP_SYS_RESOURCE
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "staticPodPath": str(folder / "manifests"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "evictionHard": nothing,
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "enforceNodeAllocatable": [],
        "nodeStatusUpdateFrequency": "1s",
        "clusterDNS": ["198.19.0.10"],
        "clusterDomain": "cluster.local",
    }

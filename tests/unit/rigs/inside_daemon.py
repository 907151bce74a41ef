"""The daemon's inside on a machine that is not there: all of it but the runtime's door and the kernel.

The node is a sysfs tree of "eight" or another one, its links are in the fake kernel; the control socket is real.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Self

from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.liveness import NoProcesses
from nri_rdma.attach.second_look import SecondLooks
from nri_rdma.attach.timers import start_timer
from nri_rdma.attach.work import Site, Work
from nri_rdma.cdi.registry import Registry
from nri_rdma.config.settings import Memlock, Settings
from nri_rdma.daemon.reload import Reloader
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.inventory import assemble
from nri_rdma.decide.policy import Asker
from nri_rdma.doors.control.control_server import ControlServer
from nri_rdma.doors.control.status_document import DaemonFacts, RuntimeView
from nri_rdma.engine.container import KnownContainer
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.gate import Gating
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.reservations import Reservations
from nri_rdma.engine.specs import SpecCache
from nri_rdma.host.cgroup import has_rdma_controller
from nri_rdma.host.limits import ContainerLimits
from nri_rdma.host.sysfs.scan import scan
from nri_rdma.model.device import Node, RdmaNetns
from nri_rdma.model.driver import DriverView
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.nldev import RdmaNetdevs
from nri_rdma.model.pod import Pod
from nri_rdma.observe.export import ExportCounts
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import all_settled
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import FakeKernel, World
from tests.rig.node import load
from tests.rig.systree import build_proc
from tests.unit.rigs.attachments import BLOCKING
from tests.unit.rigs.planted_prover import PlantedProver
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

MEMLOCK = 8 << 20
POD_ADDRESS = ip_address("10.0.0.2")
_ETHERNET_LENGTH = len("00:00:00:00:00:00")


class InsideDaemon:
    """Serves its control socket while it is open. `start_pod` is what RunPodSandbox comes to."""

    def __init__(self, work: Path, sysfs_root: Path, node: str = "eight") -> None:
        self.world = World()
        self._described = load(node)
        for netdev in self._described.netdevs:
            mac = netdev.mac[-_ETHERNET_LENGTH:]  # of IPoIB's twenty octets what the fake kernel's links have
            self.world.add_link(self.world.host, netdev.name, mac=mac, mtu=netdev.mtu, up=True)
        build_proc(self._described, work / "proc")
        self.settings = Settings(
            sysfs_root=sysfs_root,
            dev_root=work / "dev",
            proc_root=work / "proc",
            cgroup_root=work / "cgroup",
            state_dir=work / "state",
            allow_default_pool=True,
            memlock=Memlock(bytes=MEMLOCK),
        )
        self.kernel = FakeKernel(self.world)
        self.spans, self.reservations, self.workers = Recorder(), Reservations(), Workers()
        self.prover = PlantedProver()
        self.guarded: dict[str, bool | None] = {}
        """Whether runtime handlers have the guard; one that is not here has it."""
        self._source = NodeCache(self._read)
        site = Site(
            kernel=self.kernel,
            journal=Journal(self.settings.state_dir / "journal"),
            spans=self.spans,
            resolve=lambda device: device,
            on_held=lambda path: None,
        )
        self.sandboxes = Attachments(
            Work(site, SecondLooks(self.kernel, self.workers, start_timer)), self.workers, on_gone=self._gone
        )
        self.engine = Engine(
            node=self._source,
            policy=EXCLUSIVE_FIRST,
            reservations=self.reservations,
            specs=SpecCache(
                node=lambda: self._source.current,
                registry=lambda: Registry(devices={}),
                prefix=self.settings.annotation_prefix,
            ),
            attachments=self.sandboxes,
            workers=self.workers,
            readers=self.workers,
            spans=self.spans,
            limits=ContainerLimits(self.settings.cgroup_root, NoProcesses()),
            prefix=self.settings.annotation_prefix,
            waits=BLOCKING,
            memlock=MemlockBounds(default=MEMLOCK),
            gating=Gating(
                prover=self.prover,
                guarded=lambda asker, _by: self.guarded.get(asker.runtime_handler, True),
                addresses=lambda _pid: (POD_ADDRESS,),
            ),
        )
        self.settings_now = self.settings
        self.runtime = RuntimeView(link="disconnected", name="", version="", nri="", lacks=(), launched=False, error="")
        self.export_counts: ExportCounts | None = None
        self.driver: DriverView | None = None
        self.reloader = Reloader(self.settings, self._read_settings, self.engine)
        self.facts = DaemonFacts(
            settings=self.settings,
            engine=self.engine,
            spans=self.spans,
            runtime=lambda: self.runtime,
            reload_error=lambda: self.reloader.error,
            traces=lambda: asdict(self.export_counts) if self.export_counts else None,
            driver=lambda: asdict(self.driver) if self.driver else None,
        )
        self._control = ControlServer(self.facts)

    def __enter__(self) -> Self:
        self._control.serve(self.settings.control_path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._control.close()
        self.workers.close()
        self.sandboxes.close()

    @property
    def node(self) -> Node:
        """The node as the daemon knows it."""
        return self._source.current

    def read_again(self) -> None:
        """Have the daemon know the node as it is now."""
        self._source.refresh()

    def start_pod(self, name: str, annotations: Mapping[str, str], asker: Asker | None = None) -> Pod:
        """Give a pod what it asks for, traced as the runtime's event. Raises what the runtime would be told."""
        path = f"/run/netns/{name}"
        namespace = self.world.add_namespace(path)
        for interface in ("lo", "eth0"):
            self.world.add_link(namespace, interface, up=True)
        pod = Pod(sandbox_id=f"sandbox-{name}", uid=f"uid-{name}", name=name, namespace="default", netns_path=path)
        attributes = {"k8s.pod.name": str(pod), "k8s.pod.uid": pod.uid, "sandbox": pod.sandbox_id}
        with self.spans.span("RunPodSandbox", attributes):
            self.engine.run_pod(
                self.engine.start_of(pod, annotations, asker or Asker(namespace=pod.namespace)), time.monotonic() + 5
            )
        sandbox = self.sandboxes.get(pod.sandbox_id)
        if sandbox is not None:
            sandbox.attach_done.result(30)
        self._source.refresh()
        return pod

    def edits(self, pod: Pod, annotations: Mapping[str, str], container: str) -> ContainerEdits:
        """What CreateContainer is answered of a container with its handler's guard."""
        made = KnownContainer(pod=pod, name=container, annotations=annotations, has_handlers_guard=True)
        return self.engine.create_container(made, time.monotonic() + 5)

    def add_rdma_devices(self) -> None:
        """Have the kernel know the node's RDMA devices, shown in every network namespace; without, only sysfs does."""
        self.world.rdma_netns = RdmaNetns.SHARED
        rails = {link.name: link for link in self.world.host.links.values()}
        for device in self._described.rdma:
            netdev = self._described.netdev_of(device)
            assert netdev is not None
            self.world.add_rdma(device.name, node_guid=device.node_guid, netdev=rails[netdev.name])
        self._source.refresh()

    def make_cgroups(self, *paths: str) -> None:
        """Have a hierarchy that limits RDMA, with a cgroup at each of these paths."""
        root = self.settings.cgroup_root
        root.mkdir(exist_ok=True)
        (root / "cgroup.controllers").write_text("cpu memory rdma\n")
        for path in paths:
            folder = root / path.lstrip("/")
            folder.mkdir(parents=True)
            for name in ("rdma.max", "rdma.current"):
                (folder / name).write_text("")
            (folder / "cgroup.procs").write_text("4711\n")
            (folder / "rdma.peak").touch()  # a kernel that frees limits, so nobody looks for the process
        self._source.refresh()

    def cgroup_file(self, path: str, name: str) -> Path:
        """A control file of the cgroup at that path."""
        return self.settings.cgroup_root / path.lstrip("/") / name

    def stop_pod(self, pod: Pod) -> None:
        """What StopPodSandbox comes to, until its devices are free for others."""
        self.engine.stop_pod(pod.sandbox_id, time.monotonic() + 5)
        self.await_releases()

    def await_releases(self) -> None:
        """Wait until what is home is free for others."""
        all_settled(self.sandboxes.being_released(), time.monotonic() + 5)

    def _read(self) -> Node:
        found = scan(self.settings.sysfs_root, self.settings.dev_root, self.settings.proc_root)
        rdma_cgroup = has_rdma_controller(self.settings.cgroup_root)
        told = [
            RdmaNetdevs(
                index=device.index,
                name=device.name,
                node_guid=device.node_guid,
                ifindexes=(device.netdev.ifindex,) if device.netdev in self.world.host.links.values() else (),
            )
            for device in self.world.rdma
            if device.netdev is not None
        ]
        holders = {device.index: device.objects for device in self.world.rdma}
        names = [name for names in found.netdev_names.values() for name in names]
        return assemble(found, self.kernel.host_use(names), told, holders, rdma_cgroup=rdma_cgroup)

    def _read_settings(self) -> Settings:
        return self.settings_now

    def _gone(self, sandbox_id: str) -> None:
        self._source.refresh()
        self.reservations.release(sandbox_id)

"""A machine that is well, for the doctor to examine; a test breaks what it is about."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nri_rdma import __version__
from nri_rdma.commands.doctor.finding import Finding, Result
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.config.settings import Settings
from nri_rdma.errors import InventoryError, SettingError
from nri_rdma.model.device import Node
from tests.fakes.runtime import FakeRuntime

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
        self.write("proc/sys/net/core/netdev_max_backlog", "1000\n")
        self.capabilities(ALL_CAPABILITIES)
        self.mounts("tmpfs")
        self.write("cgroup/cgroup.controllers", "cpu memory rdma\n")
        self.write("cgroup/cgroup.subtree_control", "cpu memory\n")
        self.install("nri-rdma", __version__, "protobuf<8,>=6.31.1", 'grpcio>=1; extra == "otlp"')
        self.install("protobuf", "6.33.0")
        self.run.mkdir()
        self.node: Node | InventoryError = node
        self.user = 0
        self.environment: dict[str, str] = {}
        self.writable_net: Path | None = Path("/proc/sys/net")
        self.links = frozenset[str]()
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
            boot=self.folder / "boot",
            package_folders=(str(self.packages),),
            python=self.python,
            environment=self.environment,
            user=self.user,
            writable_net=lambda: self.writable_net,
            links=lambda: self.links,
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

    def contain(self, *folders: str, groups: str = "") -> None:
        """Have the machine be a container's of a kubelet, with mounts of the host on these of its folders."""
        lines = ["1 0 0:50 / / ro master:1 - overlay overlay ro"]
        own = ("/etc/hosts", "/dev/termination-log")
        places = (*own, *(f"{self.folder.resolve()}/{it}" for it in folders))
        lines += [f"{number} 1 8:1 /host{it} {it} rw {groups}- ext4 sda rw" for number, it in enumerate(places, 2)]
        self.write("proc/self/mountinfo", "\n".join(lines) + "\n")

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

"""The ways in which a container asks for devices, with the kubelet's part of each: what it does before the sandbox.

Each brings the container one device of the node "eight": another one for each way.
"""

import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from tests.rig import api_server
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.rig.expect import tree_number
from tests.rig.fabric import Fabric
from tests.rig.guard import HOOK
from tests.rig.kubelet import PATIENT, Claim, Claimed, FakeKubelet, Given, fields, message, text
from tests.rig.runtime import Runtime
from tests.rig.wanted import Wanted

PREFIX = "rdma.noderesource.dev"
_RESOURCE = "rdma/hca_shared"
_UID = "6b4c29a0-0000-4000-8000-0000000000c1"
_CONFIG = f"""
guard_hook = "{HOOK}"
node_name = "n1"
kubeconfig = "KUBECONFIG"

[pools.default]
select = {{ device = ["mlx5_3", "mlx5_5", "mlx5_6"] }}
modes = ["exclusive", "shared"]

[pools.hcas]
select = {{ device = ["mlx5_2"] }}
modes = ["shared"]
door = "resource"
resource = "{_RESOURCE}"
shares = 8

[pools.claimed]
select = {{ device = ["mlx5_4"] }}
modes = ["exclusive"]
door = "claims"
"""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the kubelet tells the runtime of a pod and its container, and what the container is to have."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    container_annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    wanted: Wanted | None = None


@dataclass
class Kubernetes:
    """The kubelet of a node, with its device manager and an API server; they outlive daemons."""

    runtime: Runtime
    node: Fabric
    folder: Path
    plugins: FakeDeviceManager
    kubelet: FakeKubelet
    api: api_server.Server

    def daemon(self) -> Daemon:
        """Return a daemon of this node, not started."""
        config = self.folder / "config.toml"
        config.write_text(_CONFIG.replace("KUBECONFIG", str(self.api.kubeconfig(self.folder))))
        flags = (
            *("--config", str(config)),
            *("--device-plugin-dir", str(self.folder / "plugins")),
            *("--kubelet-plugins-dir", str(self.folder / "kubelet")),
            *PATIENT,
        )
        return Daemon(self.runtime, self.node, extra=flags, kubelet=self.kubelet.socket)

    def forget(self) -> None:
        """Have no pod, no claim and no CDI spec."""
        self.kubelet.pods.clear()
        self.api.claims.clear()
        self.plugins.plugins.clear()
        for path in self.runtime.cdi_dir.iterdir():
            path.unlink()


@contextmanager
def kubernetes(runtime: Runtime, node: Fabric, folder: Path) -> Iterator[Kubernetes]:
    """Serve as a kubelet for a while."""
    (folder / "plugins_registry").mkdir()
    with FakeDeviceManager(folder / "plugins") as plugins, FakeKubelet() as kubelet, api_server.running() as api:
        made = Kubernetes(runtime, node, folder, plugins, kubelet, api)
        yield made
        made.forget()


class Ask(ABC):
    """A way to ask."""

    is_guarded = True

    @abstractmethod
    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        """Do what comes before the sandbox of a pod, while the daemon runs (None: it was never there)."""


class Nothing(Ask):
    """It does not ask."""

    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        return Asked()


class Annotation(Ask):
    """An annotation of the pod."""

    number = 3

    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        asks = {f"{PREFIX}/pod": f"[{{name: fabric, match: {{device: mlx5_{self.number}}}}}]"}
        return Asked(annotations=asks, wanted=Wanted(number=self.number, variable="RDMA_DEVICES_FABRIC"))


class Unguarded(Annotation):
    """The same on a node without the guard."""

    number = 6
    is_guarded = False


class Share(Ask):
    """A resource that the kubelet counts and allocates."""

    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        assert daemon is not None
        wait_until(lambda: _RESOURCE in on.plugins.plugins, f"the resource; the daemon's log:\n{daemon.log}", 15)
        admitted = on.plugins.admit(_RESOURCE, 1)
        on.kubelet.add_pod("default", pod, Given(name="main", resources={_RESOURCE: admitted.ids}))
        return Asked(
            container_annotations=admitted.annotations,
            cdi_devices=admitted.cdi_devices,
            wanted=Wanted(number=2, moves=False, variable="RDMA_DEVICES_HCA_SHARED"),
        )


class OurClaim(Ask):
    """A claim that our driver prepares."""

    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        assert daemon is not None
        device = f"pci-{on.node.node.rdma[4].function}".replace(":", "-").replace(".", "-")
        results = [{"request": "nic", "driver": PREFIX, "pool": "n1", "device": device}]
        on.api.claims[f"{api_server.CLAIMS}default/resourceclaims/rails"] = {
            "metadata": {"namespace": "default", "name": "rails", "uid": _UID, "resourceVersion": "1"},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        sockets = on.folder / "kubelet" / PREFIX
        path = wait_until(lambda: _listening(sockets), f"the driver's socket; the daemon's log:\n{daemon.log}", 15)
        cdi = _prepare(path, "default", "rails", _UID)
        claimed = Claimed(driver=PREFIX, pool="n1", device=device, cdi=cdi)
        claim = Claim(namespace="default", name="rails", devices=(claimed,))
        on.kubelet.add_pod("default", pod, Given(name="main", claims=(claim,)))
        return Asked(cdi_devices=cdi, wanted=Wanted(number=4, variable="RDMA_DEVICES_RAILS_NIC"))


class CdiDevice(Ask):
    """A CDI device of another driver, with our key."""

    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        nodes = []
        for name in ("uverbs5", "rdma_cm"):
            major, minor = map(int, tree_number(on.node, name).split(":"))
            path = f"/dev/infiniband/{name}"
            nodes.append({"path": path, "type": "c", "major": major, "minor": minor, "permissions": "rw"})
        device = {
            "name": "five",
            "annotations": {PREFIX: "{mode: exclusive}"},
            "containerEdits": {"deviceNodes": nodes},
        }
        file = on.runtime.cdi_dir / "dra.example.com-nic.json"
        beside = file.with_suffix(".new")
        beside.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "dra.example.com/nic", "devices": [device]}))
        beside.rename(file)
        names = ("dra.example.com/nic=five",)
        claimed = Claimed(driver="dra.example.com", pool="n1", device="five", cdi=names)
        claim = Claim(namespace="default", name="theirs", devices=(claimed,))
        on.kubelet.add_pod("default", pod, Given(name="main", claims=(claim,)))
        return Asked(cdi_devices=names, wanted=Wanted(number=5, variable="RDMA_DEVICES_FIVE"))


WAYS: Mapping[str, Ask] = {
    "nothing": Nothing(),
    "annotation": Annotation(),
    "share": Share(),
    "claim": OurClaim(),
    "cdi": CdiDevice(),
    "unguarded": Unguarded(),
}
"""By the names of tests/rig/outcomes.py."""


def _listening(folder: Path) -> Path | None:
    """The socket at which a driver listens; daemons that were killed leave theirs."""
    for path in folder.glob("dra*.sock"):
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(str(path))
            return path
    return None


def prepared(path: Path, namespace: str, name: str, uid: str, seconds: float = 10) -> Mapping[int, bytes]:
    """What the driver answers of a claim that is to be prepared, as the kubelet asks it: 1 is a device, 2 an error."""
    request = message(1, text(1, namespace) + text(2, uid) + text(3, name))
    with grpc.insecure_channel(f"unix:{path}") as channel:
        method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
        answer = channel.unary_unary(method)(request, timeout=seconds)
    (entry,) = [dict(fields(content)) for _, content in fields(answer)]
    return dict(fields(entry[2]))


def _prepare(path: Path, namespace: str, name: str, uid: str) -> tuple[str, ...]:
    """Have the driver prepare a claim; the CDI devices that it answers."""
    answered = prepared(path, namespace, name, uid)
    assert 2 not in answered, answered
    return tuple(content.decode() for number, content in fields(answered[1]) if number == 4)

"""The ways in which a container asks for devices, with the kubelet's part of each: what it does before the sandbox.

Each brings the container one device of the node "eight": another one for each way, or one that is shared.
"""

import json
import shutil
import socket
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from tests.rig import api_server
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.rig.dial import dial
from tests.rig.dra_state import ClaimState, write
from tests.rig.expect import tree_number
from tests.rig.fabric import Fabric
from tests.rig.guard import HOOK, checkpoint
from tests.rig.kubelet import PATIENT, Claim, Claimed, FakeKubelet, Given, fields, message, text
from tests.rig.runtime import Runtime
from tests.rig.wanted import Wanted

PREFIX = "rdma.noderesource.dev"
_RESOURCE = "rdma/hca_shared"
_GUARD = f"{PREFIX}/guard"
_CONFIG = f"""
guard_hook = "{HOOK}"
guard_resource = "{_GUARD}"
node_name = "n1"
kubeconfig = "KUBECONFIG"

[pools.default]
select = {{ device = ["mlx5_1", "mlx5_3", "mlx5_5", "mlx5_6"] }}
modes = ["exclusive", "shared"]

[pools.hcas]
select = {{ device = ["mlx5_2"] }}
modes = ["shared"]
door = "resource"
resource = "{_RESOURCE}"
shares = 8

[pools.claimed]
select = {{ device = ["mlx5_0", "mlx5_4"] }}
modes = ["exclusive"]
door = "claims"

[pools.together]
select = {{ device = ["mlx5_7"] }}
modes = ["shared"]
door = "claims"
"""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the kubelet tells the runtime of a pod and its container, and what the container is to have."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    container_annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    wanted: Wanted | None = None
    uid: str | None = None
    """The pod's, where the kubelet has told it to others."""
    pods_before: int = 0
    """How many other pods have the device already."""


@dataclass
class Kubernetes:
    """The kubelet of a node, with its device manager and an API server; they outlive daemons."""

    runtime: Runtime
    node: Fabric
    folder: Path
    plugins: FakeDeviceManager
    kubelet: FakeKubelet
    api: api_server.Server
    claims: dict[str, ClaimState] = field(default_factory=dict)
    """What the kubelet knows of claims, by their uids."""

    @property
    def kubelet_folder(self) -> Path:
        """The kubelet's own, with its checkpoint, and the sockets of drivers."""
        return checkpoint(self.runtime.run).parent

    def claim(self, state: ClaimState) -> None:
        """The kubelet has learnt something of a claim."""
        self.claims[state.uid] = state
        write(checkpoint(self.runtime.run), self.claims.values())

    def daemon(self, proves: Path | None = None) -> Daemon:
        """Return a daemon of this node, not started. `proves`: all pools prove, with this program as verbs_python."""
        config = self.folder / "config.toml"
        text = _CONFIG.replace("KUBECONFIG", str(self.api.kubeconfig(self.folder)))
        if proves is not None:
            text = f'verbs_python = "{proves}"\n{text}'.replace(
                "\nmodes = ", "\nprove = true\nuserspace = 'off'\nmodes = "
            )
        config.write_text(text)
        flags = (
            *("--config", str(config)),
            *("--device-plugin-dir", str(self.folder / "plugins")),
            *("--kubelet-plugins-dir", str(self.kubelet_folder / "plugins")),
            *PATIENT,
        )
        return Daemon(self.runtime, self.node, extra=flags, kubelet=self.kubelet.socket)

    def forget(self) -> None:
        """Have no pod, no claim and no CDI spec."""
        self.kubelet.pods.clear()
        self.api.claims.clear()
        self.claims.clear()
        write(checkpoint(self.runtime.run), ())
        self.plugins.plugins.clear()
        for path in self.runtime.cdi_dir.iterdir():
            path.unlink()


@contextmanager
def kubernetes(runtime: Runtime, node: Fabric, folder: Path) -> Iterator[Kubernetes]:
    """Serve as a kubelet for a while."""
    (checkpoint(runtime.run).parent / "plugins_registry").mkdir(parents=True)
    with FakeDeviceManager(folder / "plugins") as plugins, FakeKubelet() as kubelet, api_server.running() as api:
        made = Kubernetes(runtime, node, folder, plugins, kubelet, api)
        yield made
        made.forget()
    shutil.rmtree(checkpoint(runtime.run).parent)


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
        wait_until(
            lambda: _RESOURCE in on.plugins.plugins, lambda: f"the resource; the daemon's log:\n{daemon.log}", 15
        )
        admitted = on.plugins.admit(_RESOURCE, 1)
        on.kubelet.add_pod("default", pod, Given(name="main", resources={_RESOURCE: admitted.ids}))
        return Asked(
            container_annotations=admitted.annotations,
            cdi_devices=admitted.cdi_devices,
            wanted=Wanted(number=2, moves=False, variable="RDMA_DEVICES_HCA_SHARED"),
        )


class OurClaim(Ask):
    """A claim that our driver prepares, and the container names."""

    number = 4
    claim = "rails"
    is_named = True
    moves = True
    group: Mapping[str, str] | None = None
    """What the claim is reserved for instead of the pod."""

    @property
    def uid(self) -> str:
        """The claim's."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, self.claim))

    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        assert daemon is not None
        return self._admitted(on, pod, self._prepared(on, str(uuid.uuid4()), daemon))

    def _prepared(self, on: Kubernetes, pod_uid: str, daemon: Daemon) -> ClaimState:
        """The claim is allocated for a pod, and the kubelet has it prepared."""
        results = [{"request": "nic", "driver": PREFIX, "pool": "n1", "device": self._device(on)}]
        on.api.claims[f"{api_server.CLAIMS}default/resourceclaims/{self.claim}"] = {
            "metadata": {"namespace": "default", "name": self.claim, "uid": self.uid, "resourceVersion": "1"},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [dict(self.group or {"resource": "pods", "name": "x", "uid": pod_uid})],
            },
        }
        sockets = on.kubelet_folder / "plugins" / PREFIX
        path = wait_until(
            lambda: _listening(sockets), lambda: f"the driver's socket; the daemon's log:\n{daemon.log}", 15
        )
        known = ClaimState(uid=self.uid, name=self.claim, pods=(pod_uid,), cdi_devices={PREFIX: ()})
        on.claim(known)
        known = replace(known, cdi_devices={PREFIX: _prepare(path, "default", self.claim, self.uid)})
        on.claim(known)
        return known

    def _admitted(self, on: Kubernetes, pod: str, claim: ClaimState) -> Asked:
        """The kubelet has admitted the newest pod of the claim."""
        cdi = claim.cdi_devices[PREFIX] if self.is_named else ()
        claimed = Claimed(driver=PREFIX, pool="n1", device=self._device(on), cdi=cdi)
        claims = (Claim(namespace="default", name=self.claim, devices=(claimed,)),) if self.is_named else ()
        on.kubelet.add_pod("default", pod, Given(name="main", claims=claims))
        variable = f"RDMA_DEVICES_{self.claim.upper()}_NIC"
        wanted = Wanted(number=self.number, moves=self.moves, variable=variable)
        return Asked(cdi_devices=cdi, wanted=wanted, uid=claim.pods[-1])

    def _device(self, on: Kubernetes) -> str:
        return f"pci-{on.node.node.rdma[self.number].function}".replace(":", "-").replace(".", "-")


class UnguardedClaim(OurClaim):
    """The same on a node without the guard of the runtime: the claim brings its own."""

    number = 7
    claim = "lone"
    moves = False
    is_guarded = False


class UnnamedClaim(OurClaim):
    """A claim of the pod that its container does not name."""

    number = 0
    claim = "whole"
    is_named = False


class UnguardedUnnamedClaim(UnnamedClaim):
    """The same on a node without the guard."""

    number = 7
    claim = "bare"
    moves = False
    is_guarded = False


class SecondPod(UnnamedClaim):
    """The same as the second pod of the claim: no call tells the driver of it."""

    number = 7
    claim = "both"
    moves = False

    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        assert daemon is not None
        claim = self._prepared(on, str(uuid.uuid4()), daemon)
        first = self._admitted(on, f"{pod}-first", claim)
        on.runtime.cri.run_pod(f"{pod}-first", uid=first.uid)
        claim = replace(claim, pods=(*claim.pods, str(uuid.uuid4())))
        on.claim(claim)
        return replace(self._admitted(on, pod, claim), pods_before=1)


class GroupClaim(UnnamedClaim):
    """A claim that is reserved for a PodGroup, of which the pod is one."""

    number = 7
    claim = "gang"
    moves = False
    group = MappingProxyType(
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": str(uuid.uuid4())}
    )


class ResourceAnnotation(Annotation):
    """The annotation of a pod that has the guard resource by an admission policy, on a node without the guard."""

    number = 1
    is_guarded = False

    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        return _with_resource(on, daemon, super().prepare(on, pod, daemon))


class ResourceUnnamedClaim(UnnamedClaim):
    """A claim that no container names, and the guard resource, as above."""

    number = 7
    claim = "given"
    moves = False
    is_guarded = False

    def prepare(self, on: Kubernetes, pod: str, daemon: Daemon | None) -> Asked:
        return _with_resource(on, daemon, super().prepare(on, pod, daemon))


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
    "unnamed": UnnamedClaim(),
    "second": SecondPod(),
    "group": GroupClaim(),
    "cdi": CdiDevice(),
    "unguarded": Unguarded(),
    "unguarded-claim": UnguardedClaim(),
    "unguarded-unnamed": UnguardedUnnamedClaim(),
    "resource": ResourceAnnotation(),
    "resource-unnamed": ResourceUnnamedClaim(),
}
"""By the names of tests/rig/outcomes.py."""


def _with_resource(on: Kubernetes, daemon: Daemon | None, asked: Asked) -> Asked:
    """The kubelet has allocated one of the guard resource to the container."""
    assert daemon is not None
    known = on.plugins.plugins
    is_given = "the guard resource; the daemon's log:\n"
    wait_until(lambda: _GUARD in known and "Healthy" in known[_GUARD].devices.values(), f"{is_given}{daemon.log}")
    return replace(asked, cdi_devices=(*asked.cdi_devices, *on.plugins.admit(_GUARD, 1).cdi_devices))


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
    with dial(path) as channel:
        method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
        answer = channel.unary_unary(method)(request, timeout=seconds)
    (entry,) = [dict(fields(content)) for _, content in fields(answer)]
    return dict(fields(entry[2]))


def _prepare(path: Path, namespace: str, name: str, uid: str) -> tuple[str, ...]:
    """Have the driver prepare a claim; the CDI devices that it answers."""
    answered = prepared(path, namespace, name, uid)
    assert 2 not in answered, answered
    return tuple(content.decode() for number, content in fields(answered[1]) if number == 4)

"""A node whose claims are prepared for real: an API server on loopback, the inside of a daemon, a folder of specs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nri_rdma.decide.advertised import slice_name
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.dra.claim_specs import SpecStyle
from nri_rdma.doors.dra.preparing import PreparedDevice, Preparer
from nri_rdma.doors.dra.reporting import StatusWriter
from nri_rdma.engine.claims import Claims
from nri_rdma.host.kubernetes.api import ApiServer
from nri_rdma.model.claim import ClaimName
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode
from nri_rdma.pb import dra_pb2 as dra
from nri_rdma.pb import pluginregistration_pb2 as registration
from tests.rig.api_server import Seen, running, send
from tests.rig.dial import dial
from tests.unit.rigs.inside_daemon import InsideDaemon

OURS = "rdma.noderesource.dev"
NOTIFY = "/pluginregistration.Registration/NotifyRegistrationStatus"
PREPARE, UNPREPARE = (f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node{it}Resources" for it in ("Prepare", "Unprepare"))
RAILS = Pool(name="rails", modes=(Mode.EXCLUSIVE, Mode.SHARED), door=PoolDoor.CLAIMS)
NAME = ClaimName(namespace="team", name="rails", uid="u1")
PATH = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/rails"


def call(
    path: Path, method: str, data: bytes, metadata: Mapping[str, str] | None = None, *, waits: bool = False
) -> bytes:
    """Ask a socket, as the kubelet does, and return its answer. `waits`: until somebody listens."""
    with dial(path) as channel:
        sent = tuple((metadata or {}).items())
        answer: bytes = channel.unary_unary(method)(data, timeout=10, metadata=sent, wait_for_ready=waits)
        return answer


def asked(kind: Any, *claims: tuple[str, str]) -> bytes:
    """A request for claims of these names and uids."""
    told = [dra.Claim(namespace="team", name=name, uid=uid) for name, uid in claims]
    data: bytes = kind(claims=told).SerializeToString()
    return data


def register(registrar: Path) -> None:
    """Tell the socket that the kubelet has taken the driver; it may have been made a moment ago."""
    call(registrar, NOTIFY, registration.RegistrationStatus(plugin_registered=True).SerializeToString(), waits=True)


@dataclass
class Claimed:
    """`told` are the claims that the API server has, by their paths."""

    daemon: InsideDaemon
    preparer: Preparer
    statuses: StatusWriter
    folder: Path
    told: dict[str, dict[str, Any]]
    seen: list[Seen]
    """What the API server was asked."""
    awaited: list[str]
    """The CDI devices whose specs the answers waited for."""

    def allocate(self, *devices: str, uid: str = "u1", driver: str = OURS, request: str = "nic", **more: Any) -> None:
        """Have the claim these devices, by their RDMA names; `more` is said of each."""
        names = {it.name: slice_name(it.id) for it in self.daemon.node.devices}
        results = [
            {"request": request, "driver": driver, "pool": "node-a", "device": names.get(it, it), **more}
            for it in devices
        ]
        self.told[PATH] = {
            "metadata": {"namespace": "team", "name": "rails", "uid": uid},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": "one", "uid": "uid-1"}],
            },
        }

    def prepare(self, within_s: float = 30.0, name: ClaimName = NAME) -> tuple[PreparedDevice, ...]:
        """Prepare the claim as a call of the kubelet does."""
        return asyncio.run(self.preparer.prepare(name, time.monotonic() + within_s))

    def unprepare(self) -> None:
        """Unprepare it, without another call under way."""
        self.preparer.unprepare(NAME)

    def serve_annotations(self) -> None:
        self.daemon.engine.offering.policy = policy_of((), (), allow_default_pool=True)

    def serve_claims(self) -> None:
        self.daemon.engine.offering.policy = policy_of((RAILS,), (), allow_default_pool=False)

    @property
    def specs(self) -> list[str]:
        return sorted(it.name for it in self.folder.iterdir()) if self.folder.exists() else []


@contextmanager
def claimed(daemon: InsideDaemon, folder: Path) -> Iterator[Claimed]:
    """Have the node for a while."""
    told: dict[str, dict[str, Any]] = {}
    awaited: list[str] = []
    with running() as server:
        server.answer = lambda handler, seen: (
            send(handler, 200, told[seen.path]) if seen.path in told else send(handler, 404, {"message": "not found"})
        )
        api = ApiServer(server.kubeconfig(folder))
        statuses = StatusWriter(api, dict, folder / "cdi")  # it is never started
        preparer = Preparer(
            api.get,
            Claims(daemon.engine),
            node="node-a",
            folder=folder / "cdi",
            style=lambda: SpecStyle(prefix=OURS, hook=None, boot="boot-1"),
            statuses=statuses,
            expect=lambda names, _allocation: awaited.extend(names),
            spans=daemon.spans,
        )
        specs = folder / "cdi"
        yield Claimed(
            daemon=daemon,
            preparer=preparer,
            statuses=statuses,
            folder=specs,
            told=told,
            seen=server.seen,
            awaited=awaited,
        )
        preparer.close()
        api.close()


@contextmanager
def kubelet_folder() -> Iterator[Path]:
    """A kubelet's folder, which has its registry. Its path is short: that of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="k") as made:
        (Path(made) / "plugins_registry").mkdir()
        yield Path(made)

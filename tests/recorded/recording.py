"""A recording: the journal that a release of the daemon left, and the world that it was written in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self  # Any: the JSON of a journal

from nri_rdma.pb import nri_pb2 as nri
from tests.recorded.world import Seen
from tests.rig.node import Node

FOLDER = Path(__file__).resolve().parent
_NODE, _CDI, _PODS, _JOURNAL = "node.toml", "cdi", "pods.json", "journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container and the CDI devices that it has by their names."""

    name: str
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the runtime told it, and the links that it had at the end. `eth0` is the number of its own link, 0 where
    it is on the host's network."""

    name: str
    eth0: int
    annotations: Mapping[str, str]
    containers: tuple[Container, ...]
    links: tuple[Seen, ...] = ()

    @property
    def sandbox_id(self) -> str:
        """The runtime's id of it."""
        return f"sandbox-{self.name}"

    def message(self, netns: Path | None, pid: int) -> Any:
        """As NRI tells it."""
        namespaces = [nri.LinuxNamespace(type="network", path=str(netns))] if netns is not None else []
        return nri.PodSandbox(
            id=self.sandbox_id,
            uid=f"uid-{self.name}",
            name=self.name,
            namespace="default",
            annotations=self.annotations,
            linux=nri.LinuxPodSandbox(namespaces=namespaces),
            pid=pid,
        )

    def container_message(self, container: Container) -> Any:
        """A container of it as NRI tells it."""
        return nri.Container(
            id=f"{container.name}-of-{self.name}",
            pod_sandbox_id=self.sandbox_id,
            name=container.name,
            CDI_devices=[nri.CDIDevice(name=name) for name in container.cdi_devices],
        )

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Self:
        """One of the file `pods.json`."""
        containers = tuple(
            Container(name=it["name"], cdi_devices=tuple(it["cdi_devices"])) for it in table["containers"]
        )
        return cls(**{**table, "containers": containers, "links": tuple(map(Seen.parse, table["links"]))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What a pod has in this world in the place of what it had: its namespace's file and cookie, its process, and the
    numbers in the pod of the host's links by their number on the host."""

    boot_id: str
    netns: Path | None
    cookie: int
    process: tuple[int, int]
    pod_ifindexes: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Of one release. `host` is what its host had left, `cdi` and `journal` the texts of files by their names."""

    release: str
    node: Node
    cdi: Mapping[str, bytes]
    host: tuple[Seen, ...]
    pods: tuple[Pod, ...]
    journal: Mapping[str, bytes]

    @classmethod
    def blank(cls, folder: Path, pods: tuple[Pod, ...]) -> Self:
        """What a folder has before these pods were recorded."""
        node = Node.parse((folder / _NODE).read_text())
        return cls(release=folder.name, node=node, cdi=_texts(folder / _CDI), host=(), pods=pods, journal={})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The recording in a folder."""
        told = json.loads((folder / _PODS).read_text())
        made = cls.blank(folder, tuple(map(Pod.parse, told["pods"])))
        return replace(made, host=tuple(map(Seen.parse, told["host"])), journal=_texts(folder / _JOURNAL))

    def write(self, folder: Path) -> None:
        """All but the node and its CDI specs, which are there before anything is recorded."""
        told = {"host": [asdict(it) for it in self.host], "pods": [asdict(it) for it in self.pods]}
        (folder / _PODS).write_text(json.dumps(told, indent=1) + "\n")
        (folder / _JOURNAL).mkdir(exist_ok=True)
        for path in (folder / _JOURNAL).iterdir():
            path.unlink()
        for name, data in self.journal.items():
            (folder / _JOURNAL / name).write_bytes(data)

    def pod(self, name: str) -> Pod:
        """The pod of that name."""
        return next(pod for pod in self.pods if pod.name == name)

    def sysctls(self) -> Mapping[str, list[str]]:
        """The sysctls of the host's links that the journal knows, by the link's name."""
        links = [move["link"] for data in self.journal.values() for move in record_in(data)["plan"]["moves"]]
        return {link["name"]: link["sysctls"].splitlines() for link in links}


def recordings() -> tuple[Recording, ...]:
    """All that there are."""
    return tuple(Recording.read(path.parent) for path in sorted(FOLDER.glob(f"*/{_PODS}")))


def _texts(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def record_in(data: bytes) -> Any:
    """The record in the text of a journal file."""
    return json.loads(data)["record"]


def checksum_of(record: Any) -> str:
    """SHA-256 of the record as JSON: keys sorted, no blanks, ASCII only. As README.md has it, without the product."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def with_record(data: bytes, record: Any) -> bytes:
    """The text of a journal file with another record, and the checksum of that."""
    return json.dumps(json.loads(data) | {"record": record, "checksum": checksum_of(record)}).encode()


def in_place(data: bytes, here: Here) -> bytes:
    """The text of a journal file with what this machine has in the place of what the recording machine had."""
    record = record_in(data)
    if record["pod"]["netns_path"]:
        record["pod"]["netns_path"] = str(here.netns)
    if record["namespace"] is not None:
        record["namespace"] |= {"boot_id": here.boot_id, "cookie": here.cookie, "path": str(here.netns)}
    if record["process"] is not None:
        pid, start = here.process
        record["pod"]["pid"] = pid
        record["process"] |= {"pid": pid, "start": start}
    for move in record["plan"]["moves"]:
        move["pod_ifindex"] = here.pod_ifindexes.get(move["link"]["ifindex"], move["pod_ifindex"])
    return with_record(data, record)

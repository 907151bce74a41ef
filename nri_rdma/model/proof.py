"""The proof that RDMA works in a container before its program starts: what is asked, and what is answered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address


class ProofStep(StrEnum):
    """The steps of the proof of one device, in their order; `pyverbs` is about the library before the first."""

    PYVERBS = "pyverbs"
    OPEN = "open"
    PORT = "port"
    GID = "gid"
    REGISTER = "register"
    QP = "qp"
    CONNECT = "connect"
    TRANSFER = "transfer"


class ProofEnd(StrEnum):
    """The way in which the proving process ended."""

    ANSWERED = "answered"
    LATE = "late"
    """It did not answer within its time, and was killed."""
    ENDED = "ended"
    """It ended without an answer: somebody killed it, or a library crashed."""
    UNAVAILABLE = "unavailable"
    """It could not be started, or cannot enter the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofProblem:
    """The step that failed, with errno where the kernel gave one, and the words of the library."""

    step: ProofStep
    text: str
    errno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTask:
    """A port to prove. `gid_index` None: the proof chooses the entry (nri_rdma.decide.gids)."""

    device: str
    port: int = 1
    gid_index: int | None = None
    roce_version: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTask:
    """The proof to make for a container that was created and does not run yet.

    `pid` is its first process, in whose network namespace and cgroup the proof is made; `memlock` its RLIMIT_MEMLOCK in
    bytes, None: as that process has it; `addresses` are those of the pod.
    """

    where: str
    pid: int
    cgroups_path: str
    devices: tuple[DeviceTask, ...]
    memlock: int | None = None
    addresses: tuple[IPv4Address | IPv6Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProof:
    """The answer about one port: what was moved over which GID; `problem` None: RDMA works there."""

    device: str
    port: int
    gid_index: int | None = None
    gid: str = ""
    transport: str = ""
    """``ib``, ``roce`` or ``iwarp``."""
    registered_bytes: int = 0
    transferred_bytes: int = 0
    problem: ProofProblem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAnswer:
    """The answer about a container. Only if `end` is ANSWERED there is a proof for each device of the task."""

    end: ProofEnd
    took_ms: float
    proofs: tuple[DeviceProof, ...] = ()
    text: str = ""
    """The reason of another end, in words."""

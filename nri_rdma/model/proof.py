"""The proof that RDMA works in a container, made before its program starts: the task and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address


class ProofStep(StrEnum):
    """The steps of the proof for one device, in order. `pyverbs` stands for a missing or broken library, before the
    first step."""

    PYVERBS = "pyverbs"
    OPEN = "open"
    PORT = "port"
    GID = "gid"
    REGISTER = "register"
    QP = "qp"
    CONNECT = "connect"
    TRANSFER = "transfer"


class ProofEnd(StrEnum):
    """The way in which the process that makes the proof ended."""

    ANSWERED = "answered"
    LATE = "late"
    """It did not answer in time and was killed."""
    ENDED = "ended"
    """It ended without an answer: it was killed by others, or a library crashed."""
    UNAVAILABLE = "unavailable"
    """It could not be started, or could not enter the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofProblem:
    """The failed step, with the library's words, and errno if the kernel reported one."""

    step: ProofStep
    text: str
    errno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTask:
    """A port in which to prove RDMA. If `gid_index` is None, the proof chooses the GID (nri_rdma.decide.gids)."""

    device: str
    port: int = 1
    gid_index: int | None = None
    roce_version: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTask:
    """The task to prove RDMA for a container that is created but does not run yet.

    `pid` is its first process: the proof is made in this process's network namespace and cgroup. `memlock` is the
    RLIMIT_MEMLOCK of the proof in bytes; None means that of the process. `addresses` are those of the pod.
    """

    where: str
    pid: int
    cgroups_path: str
    devices: tuple[DeviceTask, ...]
    memlock: int | None = None
    addresses: tuple[IPv4Address | IPv6Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProof:
    """The result for one port: which GID was used and how much data was moved. RDMA works there if `problem` is
    None."""

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
    """The answer for a container. It has a proof for each device of the task only if `end` is ANSWERED."""

    end: ProofEnd
    took_ms: float
    proofs: tuple[DeviceProof, ...] = ()
    text: str = ""
    """A sentence that says why, if `end` is not ANSWERED."""

"""The test whether RDMA works in a container, made before the container's program starts: its task and its result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address


class ProofStep(StrEnum):
    """The steps of the test whether RDMA works on a device, in order. PYVERBS comes first: the failure of this step
    means that the Python library pyverbs is missing or broken."""

    PYVERBS = "pyverbs"
    OPEN = "open"
    PORT = "port"
    GID = "gid"
    REGISTER = "register"
    QP = "qp"
    CONNECT = "connect"
    TRANSFER = "transfer"


class ProofEnd(StrEnum):
    """The way in which the process that tests RDMA for a container ended."""

    ANSWERED = "answered"
    LATE = "late"
    """The process did not answer in time and was killed."""
    ENDED = "ended"
    """The process ended without an answer: another program killed it, or a library crashed."""
    UNAVAILABLE = "unavailable"
    """The process could not be started, or could not enter the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofProblem:
    """The step of the RDMA test that failed, with the library's error text, and errno if the kernel reported one."""

    step: ProofStep
    text: str
    errno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTask:
    """A port on which to test whether RDMA works. If `gid_index` is None, the test chooses the GID
    (nri_rdma.decide.gids)."""

    device: str
    port: int = 1
    gid_index: int | None = None
    roce_version: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTask:
    """The task to test RDMA for a container that is created but does not run yet.

    `pid` is the container's first process: the test runs in the network namespace and cgroup of that process. `memlock`
    is the RLIMIT_MEMLOCK of the test in bytes; None means that of the process. `addresses` are the pod's addresses.
    """

    where: str
    pid: int
    cgroups_path: str
    devices: tuple[DeviceTask, ...]
    memlock: int | None = None
    addresses: tuple[IPv4Address | IPv6Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProof:
    """The result of the RDMA test for one port: which GID was used and how much data was moved. RDMA works there if
    `problem` is None."""

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
    """The result of the RDMA test for a container. `proofs` has a result for each device of the task if `end` is
    ANSWERED; otherwise it may be incomplete."""

    end: ProofEnd
    took_ms: float
    proofs: tuple[DeviceProof, ...] = ()
    text: str = ""
    """A sentence that says why, if `end` is not ANSWERED."""
    hint: str = ""
    """The next step, if `end` is UNAVAILABLE for another reason than pyverbs and its Python."""

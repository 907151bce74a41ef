"""Explains a failed step of an RDMA proof: its error code, its likely cause, and the next step. Pure.

A proof moves data through a device of a container before the container's program starts.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from types import MappingProxyType

from nri_rdma.errors import ErrorCode
from nri_rdma.model.proof import ProofProblem, ProofStep

_LINK = "see `rdma link` and the cable; an Ethernet port is down while its netdev is"
_NODE = "see the kernel's log (`dmesg`) for this device"
_WAY = "see the addresses and routes of its netdev, and that no firewall drops UDP port 4791 (RoCE v2)"
_MEMLOCK = "give the container a larger RLIMIT_MEMLOCK (memlock: unlimited)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meaning:
    code: ErrorCode
    cause: str
    """The likely cause; "" if only the library's own words explain the failure."""
    hint: str


def _device(cause: str, hint: str = _NODE) -> _Meaning:
    return _Meaning(code=ErrorCode.PROOF_DEVICE, cause=cause, hint=hint)


def _transfer(cause: str, hint: str = _WAY) -> _Meaning:
    return _Meaning(code=ErrorCode.PROOF_TRANSFER, cause=cause, hint=hint)


_TOO_MANY = _Meaning(
    code=ErrorCode.PROOF_LIMITS,
    cause="the limits of the rdma cgroup (rdma.max) are reached",
    hint="raise `limits` of the request, or ask for none; a proof needs one hca_handle and five hca_object",
)
_NO_MEMORY = _Meaning(
    code=ErrorCode.PROOF_MEMLOCK, cause="RLIMIT_MEMLOCK is too small for what RDMA has to lock", hint=_MEMLOCK
)
_NO_MANAGER = _device(
    "the container does not have /dev/infiniband/rdma_cm, by which iWARP connects", "ask for devices: [uverbs, rdma_cm]"
)
_WITHOUT_NODE = _device(
    "the container does not have the device's node in /dev/infiniband",
    "give the container the device node, not only the name of the device",
)
_NO_WAY = _transfer("the network does not lead from the device's address to itself")

_OF_STEPS = MappingProxyType(
    {
        ProofStep.PYVERBS: _Meaning(
            code=ErrorCode.PROOF_UNAVAILABLE,
            cause="",
            hint="install the distribution's pyverbs for its own Python (Debian: python3-pyverbs)",
        ),
        ProofStep.OPEN: _device(
            "it is not in this network namespace, its node is not in /dev/infiniband, or libibverbs has no provider for"
            " it",
            "see `rdma dev` and `ls /dev/infiniband` there; the providers are in the package ibverbs-providers",
        ),
        ProofStep.PORT: _Meaning(code=ErrorCode.PROOF_PORT, cause="", hint=_LINK),
        ProofStep.GID: _Meaning(
            code=ErrorCode.PROOF_GID,
            cause="",
            hint="give its netdev an address, or take away what forces an index of the GID table: a variable of the"
            " container, or the option --gid-index",
        ),
        ProofStep.REGISTER: _device(""),
        ProofStep.QP: _device(""),
        ProofStep.CONNECT: _transfer(""),
        ProofStep.TRANSFER: _transfer(""),
    }
)
_OF_ERRORS = MappingProxyType(
    {
        (ProofStep.OPEN, errno.EPERM): _WITHOUT_NODE,
        (ProofStep.OPEN, errno.EACCES): _WITHOUT_NODE,
        (ProofStep.OPEN, errno.ENOENT): _WITHOUT_NODE,
        (ProofStep.OPEN, errno.EAGAIN): _TOO_MANY,
        (ProofStep.OPEN, errno.ENODEV): _device("it was removed, or is being reset"),
        (ProofStep.OPEN, errno.EIO): _device("it was removed, or is being reset"),
        (ProofStep.REGISTER, errno.EAGAIN): _TOO_MANY,
        (ProofStep.REGISTER, errno.ENOMEM): _NO_MEMORY,
        (ProofStep.QP, errno.EAGAIN): _TOO_MANY,
        (ProofStep.QP, errno.ENOMEM): _NO_MEMORY,
        (ProofStep.CONNECT, errno.EAGAIN): _TOO_MANY,
        (ProofStep.CONNECT, errno.EPERM): _NO_MANAGER,
        (ProofStep.CONNECT, errno.EACCES): _NO_MANAGER,
        (ProofStep.CONNECT, errno.ENOENT): _NO_MANAGER,
        (ProofStep.CONNECT, errno.ENODEV): _NO_WAY,
        (ProofStep.CONNECT, errno.ENETUNREACH): _NO_WAY,
        (ProofStep.CONNECT, errno.EHOSTUNREACH): _NO_WAY,
        (ProofStep.CONNECT, errno.ETIMEDOUT): _NO_WAY,
        (ProofStep.CONNECT, errno.EADDRNOTAVAIL): _NO_WAY,
    }
)
_LIMITED = _Meaning(
    code=ErrorCode.PROOF_PORT,
    cause="",
    hint="make the port a full member of its partition at the subnet manager: limited members do not reach each other",
)
_NO_ADDRESS = _transfer(
    "",
    "give the pod the netdev with an address, by which iWARP connects: `mode: exclusive`, or `hostNetwork: true`",
)
LIMITED_MEMBER = "a limited member"
"""The words that the test program's error has for a P_Key without full membership."""
WITHOUT_ADDRESS = "no address of the pod is on"
"""The words that the test program's error has for an iWARP device that has no IP address in the container."""
_NO_CHANNEL = "CMEventChannel"
"""The word in pyverbs' error if rdma_cm is missing. The error's number is ENODEV, which a missing route causes, too."""
_FAILED = MappingProxyType(
    {
        ProofStep.PYVERBS: "pyverbs cannot be used",
        ProofStep.OPEN: "{place} cannot be opened",
        ProofStep.PORT: "{place} cannot carry data",
        ProofStep.GID: "{place} has no GID to send by",
        ProofStep.REGISTER: "memory cannot be registered on {place}",
        ProofStep.QP: "no queue pair can be made on {place}",
        ProofStep.CONNECT: "{place} cannot be connected to itself",
        ProofStep.TRANSFER: "data does not arrive through {place}",
    }
)

MOST_REGISTERED = 64 << 20
TRANSFER_BYTES = 1 << 20
LEAST_REGISTERED = 2 * TRANSFER_BYTES
"""The least memory that a proof (a test that moves data through a device) registers, in bytes: it moves one half into
the other. A container that may not lock this much cannot use RDMA."""
_QUEUES_BYTES = 256 << 10
"""The bytes that drivers lock for a queue pair and its completion queue."""
LEAST_LOCKED = LEAST_REGISTERED + _QUEUES_BYTES
"""The least RLIMIT_MEMLOCK, in bytes, with which a process can make a proof (move data through a device as a test)."""
_MEMORY_PART = 4
"""A proof uses at most the container's memory divided by this number."""


def bytes_to_register(memlock: int | None, memory_max: int | None) -> int:
    """Return how many bytes a proof registers for RDMA in a container; a proof is a test that moves data through a
    device. `memlock` and `memory_max` are the container's limits in bytes; None: no limit."""
    sizes = [MOST_REGISTERED]
    sizes += [memory_max // _MEMORY_PART] if memory_max is not None else []
    sizes += [memlock - _QUEUES_BYTES] if memlock is not None else []
    return max(LEAST_REGISTERED, min(sizes))


def words_of(problem: ProofProblem, device: str, port: int) -> tuple[ErrorCode, str, str]:
    """Return the error code of a failed proof, a sentence with the failed port and the likely cause, and the next
    step."""
    meaning = _meaning(problem)
    failed = _FAILED[problem.step].format(place=f"{device}, port {port},").rstrip(",")
    cause = f", probably because {meaning.cause}" if meaning.cause else ""
    return meaning.code, f"{failed}{cause}: {problem.text}", meaning.hint


def _meaning(problem: ProofProblem) -> _Meaning:
    if problem.step is ProofStep.PORT and LIMITED_MEMBER in problem.text:
        return _LIMITED
    if problem.step is ProofStep.CONNECT and _NO_CHANNEL in problem.text:
        return _NO_MANAGER
    if problem.step is ProofStep.CONNECT and WITHOUT_ADDRESS in problem.text:
        return _NO_ADDRESS
    return _OF_ERRORS.get((problem.step, problem.errno or 0), _OF_STEPS[problem.step])

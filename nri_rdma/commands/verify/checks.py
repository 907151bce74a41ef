"""Tests each RDMA port of this container. Each test is a subprocess: the pyverbs program, run by the distribution's
Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any  # Any: JSON of the program

from nri_rdma.decide.proof import TRANSFER_BYTES, words_of
from nri_rdma.errors import ProofError
from nri_rdma.host.verbs_program import ask
from nri_rdma.model.proof import DeviceTask, ProofProblem, ProofStep


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPort:
    """The result for one port. `told` is the answer of the pyverbs program. `error` is None if RDMA works on the
    port."""

    port: DeviceTask
    told: dict[str, Any]
    error: ProofError | None


def check(
    ports: Iterable[DeviceTask],
    addresses: Iterable[IPv4Address | IPv6Address],
    memory_bytes: int,
    python: Path | None,
    within_s: float,
) -> Iterator[CheckedPort]:
    """Test the ports one after the other, and yield the result of each at once.

    `addresses` are the container's IP addresses, by which a GID is chosen. `memory_bytes` is how much memory to
    register. `python` is the Python with pyverbs. `within_s` is the time limit for one port in seconds.
    """
    own = [str(it) for it in addresses]
    for port in ports:
        task = {
            "device": port.device,
            "port": port.port,
            "gid_index": port.gid_index,
            "roce_version": port.roce_version,
            "addresses": own,
            "memory_bytes": memory_bytes,
            "transfer_bytes": TRANSFER_BYTES,
        }
        try:
            (told,) = ask(python, "check", task, within_s)
        except ProofError as error:
            what = f"{port.device}, port {port.port}: {error.what}"
            yield CheckedPort(port=port, told={}, error=ProofError(error.code, what, hint=error.hint))
        else:
            yield CheckedPort(port=port, told=told, error=error_of(told, port.device, port.port))


def error_of(told: dict[str, Any], device: str, port: int) -> ProofError | None:
    """Return the error for the problem in the answer of the pyverbs program; None if the answer reports no problem. The
    error names the device and the port."""
    if "problem" not in told:
        return None
    it = told["problem"]
    problem = ProofProblem(step=ProofStep(it["step"]), text=it["text"], errno=it["errno"])
    code, what, hint = words_of(problem, device, port)
    return ProofError(code, what, hint=hint)

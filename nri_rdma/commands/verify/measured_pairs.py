"""Measures latency and bandwidth between the RDMA devices of two containers with the pyverbs program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any  # Any: JSON of the program

from nri_rdma.commands.verify.checks import error_of
from nri_rdma.errors import ErrorCode, ProofError
from nri_rdma.host.verbs.peers import MOST_DEVICES, MOST_PAIRS
from nri_rdma.host.verbs_program import ask
from nri_rdma.model.proof import DeviceTask

TCP_PORT = 18516
ITERATIONS = 1000
MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latencies in one direction, in microseconds: the least, the median and the 99th percentile."""

    least: float
    median: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPair:
    """The result for one pair of ports, each written as DEVICE:PORT. `error` is None if the pair was measured."""

    client: str
    server: str
    latency: Latency | None = None
    mib_per_s: float = 0.0
    error: ProofError | None = None

    @property
    def gbit_per_s(self) -> float:
        """The bandwidth in Gbit/s, the unit in which link speeds are given."""
        return self.mib_per_s * (1 << 23) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """One side of a measurement, which is this container: its ports, its IP addresses, and the Python with pyverbs.
    `wait_s` is how many seconds to wait for the other container, and `pair_s` the time limit for each step of a
    pair."""

    ports: tuple[DeviceTask, ...]
    addresses: tuple[IPv4Address | IPv6Address, ...]
    python: Path | None
    wait_s: float
    pair_s: float

    def task(self, **more: object) -> dict[str, Any]:
        """Return the input of the pyverbs program, which does the measurement: this side's ports and time limits, with
        the fields `more` of the serving or calling side.

        Raises ProofError if this side has more ports than the program can measure.
        """
        if len(self.ports) > MOST_DEVICES:
            what = f"{len(self.ports)} ports are too many: at most {MOST_DEVICES} are measured"
            raise ProofError(ErrorCode.PROOF_UNAVAILABLE, what, hint="name the devices on the command line")
        told = [str(it) for it in self.addresses]
        devices = [
            {
                "device": it.device,
                "port": it.port,
                "gid_index": it.gid_index,
                "roce_version": it.roce_version,
                "addresses": told,
            }
            for it in self.ports
        ]
        return {"devices": devices, "wait_s": self.wait_s, "pair_s": self.pair_s, **more}


def serve(own: Own, bind: str, tcp_port: int, on_listening: Callable[[str, int], None]) -> Iterator[MeasuredPair]:
    """Wait for the other container to connect, and yield the result of each pair that it measures. `on_listening` gets
    the address and the TCP port on which this side listens.

    Raises ProofError if nobody connects in time or the measurement breaks off.
    """
    task = own.task(bind=bind, tcp_port=tcp_port)
    for line in ask(own.python, "serve", task, _whole_s(own, 0)):
        if "listening" in line:
            on_listening(line["listening"]["address"], line["listening"]["port"])
        yield from _measured([line])


def call(
    own: Own, host: str, tcp_port: int, *, pairs: str, iterations: int, message_bytes: int, seconds: float
) -> Iterator[MeasuredPair]:
    """Connect to a container that waits in `serve`, and yield the result of each pair.

    `pairs` is "all" (each port with each) or "same" (ports at one position). `iterations` is the number of messages for
    the latency. `message_bytes` and `seconds` are for the bandwidth. Raises ProofError if the connection fails or the
    measurement breaks off.
    """
    task = own.task(
        host=host,
        tcp_port=tcp_port,
        pairs=pairs,
        iterations=iterations,
        message_bytes=message_bytes,
        seconds=seconds,
    )
    yield from _measured(ask(own.python, "call", task, _whole_s(own, seconds)))


def _whole_s(own: Own, seconds: float) -> float:
    """Return the time limit in seconds for the whole measurement: the limit of the wait, and the limits of as many
    pairs as are allowed."""
    return own.wait_s + MOST_PAIRS * (2 * own.pair_s + seconds)


def _measured(lines: Iterable[dict[str, Any]]) -> Iterator[MeasuredPair]:
    for line in lines:
        if "error" in line:
            hint = "check that the other side runs the same nri-rdma, and that the address and port are right"
            raise ProofError(ErrorCode.PROOF_TRANSFER, line["error"], hint=hint)
        if "client" in line:
            yield _pair(line)


def _pair(line: dict[str, Any]) -> MeasuredPair:
    client, server = (f"{line[side]['device']}:{line[side]['port']}" for side in ("client", "server"))
    if "problem" in line:
        at = line[line["side"]]
        error = error_of(line, at["device"], at["port"])
        assert error is not None  # error_of returns one for each line with a problem
        error.where = f"the {line['side']}'s side of {client} and {server}"
        return MeasuredPair(client=client, server=server, error=error)
    told = line["latency_us"]
    latency = Latency(least=told["min"], median=told["median"], p99=told["p99"])
    return MeasuredPair(client=client, server=server, latency=latency, mib_per_s=line["mib_per_s"])

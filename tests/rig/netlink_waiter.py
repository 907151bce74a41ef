"""A process that waits for rtnetlink again and again, as a CNI plugin does: lists links, adds an address, removes it.

It runs in a namespace of its own, so that it shares nothing with others but the kernel's lock of all links. Nothing of
the product is in it. `python -m tests.rig.netlink_waiter` writes "ready", and at its end what it waited.
"""

import json
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2]
_GETLINK, _NEWADDR, _DELADDR = 18, 20, 21  # RTM_*, include/uapi/linux/rtnetlink.h
_REQUEST, _ACK, _DUMP, _CREATE_EXCL = 0x1, 0x4, 0x300, 0x600
_LOOPBACK = 1
_PAUSE_S = 0.001


@dataclass(slots=True)
class Waits:
    """What each round waited: when it began, and for how long, in seconds of `time.perf_counter`."""

    rounds: list[tuple[float, float]] = field(default_factory=list)

    def between(self, begin: float, end: float) -> "Waits":
        """Return the rounds that ended within this time."""
        return Waits([(at, took) for at, took in self.rounds if begin <= at + took <= end])

    @property
    def worst_s(self) -> float:
        return max((took for _, took in self.rounds), default=0.0)

    @property
    def p99_s(self) -> float:
        took = sorted(took for _, took in self.rounds)
        return took[int(len(took) * 0.99)] if took else 0.0

    def __str__(self) -> str:
        return f"{len(self.rounds)} rounds, p99 {self.p99_s * 1e3:.1f} ms, at most {self.worst_s * 1e3:.1f} ms"


@contextmanager
def waiting() -> Iterator[Waits]:
    """Run the process meanwhile; its waits are there afterwards."""
    waits = Waits()
    command = ["unshare", "--net", sys.executable, "-m", "tests.rig.netlink_waiter"]
    with subprocess.Popen(command, cwd=_PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield waits
        finally:
            process.terminate()
            waits.rounds += [tuple(it) for it in json.loads(process.stdout.read() or "[]")]


def _main() -> None:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    address = bytes((127, 9, 9, 9))
    added = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, _LOOPBACK)
    added += b"".join(struct.pack("=HH", 8, kind) + address for kind in (1, 2))  # IFA_ADDRESS, IFA_LOCAL
    rounds: list[tuple[float, float]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        print("ready", flush=True)
        while not stopped:
            begin = time.perf_counter()
            _ask(sock, _GETLINK, _DUMP, bytes(16))
            _ask(sock, _NEWADDR, _ACK | _CREATE_EXCL, added)
            _ask(sock, _DELADDR, _ACK, added)
            rounds.append((begin, time.perf_counter() - begin))
            time.sleep(_PAUSE_S)
    print(json.dumps(rounds), flush=True)


def _ask(sock: socket.socket, kind: int, flags: int, body: bytes) -> None:
    """Send a request, and wait for its end: NLMSG_ERROR or NLMSG_DONE."""
    sock.send(struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST, 1, 0) + body)
    while True:
        data, offset = sock.recv(1 << 17), 0
        while offset < len(data):
            length, answer = struct.unpack_from("=IH", data, offset)
            if answer in {2, 3}:
                return
            offset += (length + 3) & ~3


if __name__ == "__main__":
    _main()

"""The program that the distribution's Python runs.

python3 -I program.py capacity NAME...    print the capacity of each device (capacity.answers)
python3 -I program.py check               check a port (selfcheck.check): reads one JSON task per line from the
                                          standard input, and prints one JSON answer per line
python3 -I program.py serve               measure between two containers (peers.serve, peers.call): reads a task from
python3 -I program.py call                the standard input, and prints lines of JSON
python3 -I program.py warm                test RDMA in containers (warm.serve): the standard input is a socket

The program imports nri_rdma from the package that contains this file, even if the distribution's Python has another
nri_rdma; all other modules come from the distribution. That Python may be older than the daemon's: `capacity` needs
3.9, the rest 3.10.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any  # Any: a task in JSON

if __name__ == "__main__":
    _ours = sys.modules["nri_rdma"] = ModuleType("nri_rdma")
    _ours.__path__ = [str(Path(__file__).resolve().parents[2])]

_USAGE = 2


def main(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name (see the module), print each answer as soon as it is known, and return
    the exit code."""
    verb, names = (arguments or [""])[0], arguments[1:]
    answer = _VERBS.get(verb)
    if answer is None or (names and verb != "capacity"):
        sys.stderr.write(f"{__doc__}\n")
        return _USAGE
    answer(names)
    return 0


def _capacity(names: Sequence[str]) -> None:
    from nri_rdma.host.verbs import capacity  # imported late, like the others, which need more than Python 3.9

    _print(capacity.answers(names))


def _check(_names: Sequence[str]) -> None:
    from nri_rdma.host.verbs import selfcheck

    _print(selfcheck.check(task) for task in _tasks(sys.stdin))


def _serve(_names: Sequence[str]) -> None:
    from nri_rdma.host.verbs import peers

    _print(it for task in _tasks(sys.stdin) for it in peers.serve(task))


def _call(_names: Sequence[str]) -> None:
    from nri_rdma.host.verbs import peers

    _print(it for task in _tasks(sys.stdin) for it in peers.call(task))


def _warm(_names: Sequence[str]) -> None:
    from nri_rdma.host.verbs import warm

    warm.serve(socket.socket(fileno=sys.stdin.fileno()))


_VERBS = {"capacity": _capacity, "check": _check, "serve": _serve, "call": _call, "warm": _warm}


def _tasks(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in lines)


def _print(answers: Iterable[dict[str, Any]]) -> None:
    for answer in answers:
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

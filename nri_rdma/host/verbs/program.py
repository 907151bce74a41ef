"""The program that the distribution's Python runs.

python3 -I program.py capacity NAME...    what each device can have (capacity.answers)
python3 -I program.py check               the self-check of a port (selfcheck.check): a JSON task a line on the
                                          standard input, a JSON answer a line on the standard output
python3 -I program.py serve               measures between two containers (peers.serve, peers.call): a task on the
python3 -I program.py call                standard input, lines of JSON on the standard output
python3 -I program.py warm                proofs in containers (warm.serve): the standard input is a socket

The package is the one that this file lies in, whatever the distribution's Python has, and its folder is searched for
nothing else: pyverbs and the rest are the distribution's. That Python may be older than the daemon's: `capacity` needs
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
    """Print the answers that the command line asks for, each as soon as it is known. Return the exit code."""
    verb, names = (arguments or [""])[0], arguments[1:]
    answer = _VERBS.get(verb)
    if answer is None or (names and verb != "capacity"):
        sys.stderr.write(f"{__doc__}\n")
        return _USAGE
    answer(names)
    return 0


def _capacity(names: Sequence[str]) -> None:
    from nri_rdma.host.verbs import capacity  # late, as all of them: it needs no more than Python 3.9

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

"""The program that the distribution's Python runs.

python3 -I program.py capacity NAME...    what each device can have (capacity.answers)
python3 -I program.py check               the self-check of a port (selfcheck.check): a JSON task a line on the
                                          standard input, a JSON answer a line on the standard output
python3 -I program.py serve               measures between two containers (peers.serve, peers.call): a task on the
python3 -I program.py call                standard input, lines of JSON on the standard output
python3 -I program.py warm                proofs in containers (warm.serve): the standard input is a socket

The package is the one that this file lies in, whatever the distribution's Python has, and its folder is searched for
nothing else: pyverbs and the rest are the distribution's.
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

from nri_rdma.host.verbs import capacity, peers, selfcheck, warm

_USAGE = 2


def main(arguments: Sequence[str]) -> int:
    """Print the answers that the command line asks for, each as soon as it is known. Return the exit code."""
    match arguments:
        case ["capacity", *names]:
            _print(capacity.answers(names))
        case ["check"]:
            _print(selfcheck.check(task) for task in _tasks(sys.stdin))
        case ["serve"]:
            _print(it for task in _tasks(sys.stdin) for it in peers.serve(task))
        case ["call"]:
            _print(it for task in _tasks(sys.stdin) for it in peers.call(task))
        case ["warm"]:
            warm.serve(socket.socket(fileno=sys.stdin.fileno()))
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return _USAGE
    return 0


def _tasks(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in lines)


def _print(answers: Iterable[dict[str, Any]]) -> None:
    for answer in answers:
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

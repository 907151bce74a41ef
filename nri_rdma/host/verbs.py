"""The only home of pyverbs: asks RDMA devices what they can have.

This file is a program, too. pyverbs belongs to the distribution's Python and is not seen by that of a virtual
environment; and while it opens a device it keeps every other thread of its process waiting. So the daemon starts
this file with the distribution's Python (nri_rdma.host.capacities), which has none of our packages: nothing is imported
here but the standard library. See docs/adr/0030.

    python3 -I verbs.py NAME...

It prints one JSON object a line: `{"device": NAME, "capacity": {"qp": NUMBER, ...}}`, or `{"device": NAME, "problem":
TEXT}`. A line `{"problem": TEXT}` is about pyverbs itself, and the last one.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence

ATTRIBUTES = {
    "qp": "max_qp",
    "cq": "max_cq",
    "mr": "max_mr",
    "mw": "max_mw",
    "pd": "max_pd",
    "ah": "max_ah",
    "srq": "max_srq",
}
"""The kinds of object that the rdma cgroup counts, with pyverbs's names of a device's capacity."""


def answers(names: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield the answer for each device. Opens the devices, which may take long; never raises for one of them."""
    try:
        verbs = importlib.import_module("pyverbs.device")
    except Exception as error:  # noqa: BLE001 - also SystemError and ImportError of a library of another version
        yield {"problem": f"pyverbs cannot be used: {_words(error)}"}
        return
    for name in names:
        try:
            with verbs.Context(name=name) as context:
                told = context.query_device()
                yield {"device": name, "capacity": {kind: getattr(told, key) for kind, key in ATTRIBUTES.items()}}
        except Exception as error:  # noqa: BLE001 - pyverbs raises several, and one device's are not the others'
            yield {"device": name, "problem": _words(error)}


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def main() -> None:
    """Print the answers for the devices that the command line names, each as soon as it is known."""
    for answer in answers(sys.argv[1:]):
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

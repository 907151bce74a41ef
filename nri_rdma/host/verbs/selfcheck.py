"""Checks whether an RDMA device works, by using it: opens it, registers memory, connects it to itself, and moves data.

A task is a dict for JSON: `device`, `port` (default 1), `gid_index` (None: nri_rdma.decide.gids chooses), `addresses`
(the pod's IP addresses, as text), `roce_version` (default 2), `memory_bytes` and `transfer_bytes`.

The answer is a dict, too: `device`, `port`, `transport` ("ib", "roce", "iwarp"; "" if unknown), `gid` (`index`,
`value`, `type`; None if there is none), `registered_bytes`, `transferred_bytes`, and `ms`, the time of each step. An
answer with `problem` (`step`, `errno`, `text`) says that RDMA does not work there. Every error of a library or driver
becomes such an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # Any: JSON, and pyverbs has no types

from nri_rdma.host.verbs import iwarp, library, port, queues
from nri_rdma.host.verbs.steps import StepError, Steps, failing


def check(task: Mapping[str, Any]) -> dict[str, Any]:
    """Check the RDMA device and port of a task, and return the answer (see the module for both). Blocks as long as the
    driver does. An error becomes the answer's `problem`."""
    steps = Steps()
    answer: dict[str, Any] = {
        "device": task.get("device"),
        "port": task.get("port", 1),
        "transport": "",
        "gid": None,
        "registered_bytes": 0,
        "transferred_bytes": 0,
        "ms": steps.ms,
    }
    try:
        with failing("pyverbs"):
            _check(task, steps, answer)
    except StepError as error:
        answer["problem"] = error.problem
    return answer


def _check(task: Mapping[str, Any], steps: Steps, answer: dict[str, Any]) -> None:
    device = library.part("device")
    with steps.step("open"):
        context = device.Context(name=task["device"])
    try:
        with steps.timed("query"):
            found = port.look_at(context, task, answer)
        if found.gid is not None:
            answer["gid"] = {"index": found.gid.index, "value": port.written(found.gid), "type": str(found.gid.type)}
        if found.transport != "iwarp":
            queues.prove(context, found, task, steps, answer)
    finally:
        with failing("open"):
            context.close()
    if found.transport == "iwarp":  # the iWARP check opens the device itself
        iwarp.prove(task, steps, answer)

"""Queries RDMA devices for their capacity: the largest number of objects of each kind, such as queue pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nri_rdma.host.verbs import library

ATTRIBUTES = {
    "qp": "max_qp",
    "cq": "max_cq",
    "mr": "max_mr",
    "mw": "max_mw",
    "pd": "max_pd",
    "ah": "max_ah",
    "srq": "max_srq",
}
"""The kinds of object that the rdma cgroup counts, with the name of the matching device attribute in pyverbs."""


def answers(names: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield the capacity of each named device as a dict. Opens the devices, which may take long. Never raises.

    A dict is `{"device": NAME, "capacity": {"qp": NUMBER, ...}}` or `{"device": NAME, "problem": TEXT}`. If pyverbs
    itself cannot be used, the only dict is `{"problem": TEXT}`.
    """
    try:
        verbs = library.part("device")
    except Exception as error:  # noqa: BLE001 - also SystemError, and ImportError of a library of another version
        yield {"problem": f"pyverbs cannot be used: {library.words(error)}"}
        return
    for name in names:
        try:
            with verbs.Context(name=name) as context:
                told = context.query_device()
                yield {"device": name, "capacity": {kind: getattr(told, key) for kind, key in ATTRIBUTES.items()}}
        except Exception as error:  # noqa: BLE001, PERF203 - of several types; other devices still answer
            yield {"device": name, "problem": library.words(error)}

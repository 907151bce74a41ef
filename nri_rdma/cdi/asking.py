"""Checks the requests to nri-rdma in CDI specs before a container is created.

Runtimes accept any text in annotations. If the text under nri-rdma's annotation key cannot be read, nri-rdma refuses
containers with a device of the spec. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from nri_rdma.cdi.document import read_document
from nri_rdma.cdi.meaning import is_uverbs, refuse_key_of_pods
from nri_rdma.cdi.problems import MAX_PROBLEMS, path_text, problems_of
from nri_rdma.cdi.reading import Inspected, inspect, line_at
from nri_rdma.cdi.spec import Device, Spec
from nri_rdma.errors import RequestError
from nri_rdma.text.nodes import Path
from nri_rdma.text.refusals import Errors


def inspect_asking(data: bytes, file: str, prefix: str) -> Inspected:
    """Return the spec in the text of `file`, or all problems of the file. A spec may contain requests to nri-rdma in
    annotations; a valid spec comes with the problems of its requests. `prefix` is the key of such an annotation."""
    inspected = inspect(data, file)
    if inspected.spec is None:
        return inspected
    errors = Errors(most=MAX_PROBLEMS)
    node = read_document(data, errors)
    assert node is not None  # a file with a spec has a document
    for path, error in _wrong(inspected.spec, prefix):
        within = error.where.removeprefix(str(path[-1]))
        what = f"{within.removeprefix('.')}: {error.what}" if within else error.what
        where = path_text(path)
        errors.add(RequestError(error.code, what, where=where, hint=error.hint, line=line_at(node, path)))
    return Inspected(spec=inspected.spec, problems=problems_of(errors, file, {}))


def _wrong(spec: Spec, prefix: str) -> Iterator[tuple[Path, RequestError]]:
    """Yield the path and the error of each annotation of the spec that is for nri-rdma and cannot be read."""
    counts = [_count(spec, device) for device in spec.devices]
    for key, text in spec.annotations:  # these apply to each device without such an annotation
        yield from _wrong_at(("annotations", key), text, prefix, max(counts, default=1))
    for number, device in enumerate(spec.devices):
        for key, text in device.annotations:
            yield from _wrong_at(("devices", number, "annotations", key), text, prefix, counts[number])


def _count(spec: Spec, device: Device) -> int:
    """Return how many RDMA devices a CDI device stands for: the number of its uverbs nodes, or one if it has only
    netdevs."""
    nodes = {node.path for node in (*spec.edits.device_nodes, *device.edits.device_nodes) if is_uverbs(node)}
    return max(1, len(nodes))


def _wrong_at(path: tuple[str | int, ...], text: str, prefix: str, count: int) -> Iterator[tuple[Path, RequestError]]:
    from nri_rdma.text.requests import read_granted  # imported late: without requests in specs no YAML is needed

    key = str(path[-1])
    try:
        refuse_key_of_pods(key, prefix, "")
        if key == prefix:
            read_granted(text, key, "cdi", count)
    except RequestError as error:
        yield path, error

"""What `trace -o json` printed, read again from a file.

The daemon's own answer is known to hold together; a file is not: ids that repeat, times that are none and trees without
end are refused, so that whatever is drawn is drawn in bounded time.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any  # Any: a JSON document

from nri_rdma.commands.cli.jsonfile import read_json_object
from nri_rdma.commands.cli.waterfall import SpanRow, read_spans
from nri_rdma.errors import ErrorCode, NotReadyError, SettingError

MAX_SPANS = 20_000
"""An answer of the daemon has fewer: each takes more than a hundred bytes of three MiB."""
MAX_DEPTH = 100
"""A step of an attach is four deep."""
_LATEST_NS = 253_402_300_799 * 10**9
"""The last second of the year 9999, the last that has a date."""


def read_trace(path: Path) -> dict[str, Any]:
    """The trace document of a file; - is stdin. Raises SettingError when it holds none, or OSError."""
    refused = partial(_refused, path)
    document = read_json_object(path, refused)
    try:
        spans = read_spans(document)
    except NotReadyError as error:
        raise refused(error.what) from error
    if why := _why_not(spans):
        raise refused(why)
    return document


def _why_not(spans: tuple[SpanRow, ...]) -> str:
    """Say what does not hold together; "" when all does."""
    if len(spans) > MAX_SPANS:
        return f"it has more than {MAX_SPANS} spans"
    parents = {(span.trace_id, span.span_id): (span.trace_id, span.parent_id) for span in spans}
    if len(parents) < len(spans):
        return "two of its spans have one id"
    if not all(0 <= span.start_ns <= span.end_ns <= _LATEST_NS for span in spans):
        return "a span of it ends before it begins, or is of no time that is"
    depths: dict[tuple[str, str], int] = {}
    for key in parents:
        way: list[tuple[str, str]] = []
        at = key
        while at in parents and at not in depths and len(way) <= MAX_DEPTH:
            way.append(at)
            at = parents[at]
        below = depths.get(at, 0) + 1
        depths |= {above: depth for depth, above in enumerate(reversed(way), start=below)}
        if depths[key] > MAX_DEPTH:
            return f"its spans are nested deeper than {MAX_DEPTH} levels, or in each other"
    return ""


def _refused(path: Path, why: str) -> SettingError:
    hint = "save one with `nri-rdma trace -o json`, of this version"
    return SettingError(ErrorCode.SETTING, f"this is no trace: {why}", where=str(path), hint=hint)

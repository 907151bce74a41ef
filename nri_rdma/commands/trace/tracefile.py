"""Reads a file with the output of `trace -o json`.

The daemon's own answers are consistent, but a file may not be. Repeated ids, impossible times and spans nested in each
other are refused, so that drawing always ends.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any  # Any: a JSON document

from nri_rdma.commands.common.jsonfile import read_json_object
from nri_rdma.commands.trace.waterfall import SpanRow, read_spans
from nri_rdma.errors import ErrorCode, NotReadyError, SettingError

MAX_SPANS = 20_000
"""The maximum number of spans. An answer of the daemon has fewer: it has at most 3 MiB, and each span takes over a
hundred bytes."""
MAX_DEPTH = 100
"""The maximum depth of nested spans. The steps of an attach are only four levels deep."""
_LATEST_NS = 253_402_300_799 * 10**9
"""The last second of the year 9999, the latest time that datetime can show."""


def read_trace(path: Path) -> dict[str, Any]:
    """Return the trace document in the file (- is stdin). Raises OSError if the file cannot be read, and SettingError
    if it contains no valid trace."""
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
    """Return why the spans are inconsistent; "" if they are consistent."""
    if len(spans) > MAX_SPANS:
        return f"it has more than {MAX_SPANS} spans"
    parents = {(span.trace_id, span.span_id): (span.trace_id, span.parent_id) for span in spans}
    if len(parents) < len(spans):
        return "two of its spans have the same id"
    if not all(0 <= time <= _LATEST_NS for span in spans for time in (span.start_ns, span.end_ns)):
        return "one of its spans has an impossible time"  # it may end before it begins, if the clock was set back
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

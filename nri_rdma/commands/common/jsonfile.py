"""Reads a JSON document from a file that the user names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: a JSON document

import click

from nri_rdma.doors.control.node_document import DOCUMENT_VERSION, json_of
from nri_rdma.errors import SettingError

MAX_BYTES = 16 << 20


def read_json_object(path: Path, refused: Callable[[str], SettingError]) -> dict[str, Any]:
    """Return the JSON object in the file (- is stdin), if it has our document version.

    Raises OSError if the file cannot be read. If its content is not such an object, raises the error that `refused`
    makes from the reason.
    """
    with click.open_file(str(path), "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise refused(f"it is larger than {MAX_BYTES} bytes")
    try:
        document = json_of(data)
    except ValueError as error:
        raise refused(f"it is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise refused("it is no JSON object")
    if document.get("version") != DOCUMENT_VERSION:
        raise refused(f"its version is {document.get('version')!r} instead of {DOCUMENT_VERSION}")
    return document

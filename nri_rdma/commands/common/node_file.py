"""The JSON document of a node, as `inventory -o json` prints it and `snapshot` saves it, and its reader."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any  # Any: a JSON document

from nri_rdma.commands.common.jsonfile import read_json_object
from nri_rdma.doors.control.node_document import DOCUMENT_VERSION, node_document, node_from
from nri_rdma.errors import ErrorCode, NotReadyError, SettingError
from nri_rdma.model.device import Node


def document_of(node: Node, sentences: tuple[str, ...]) -> dict[str, Any]:
    """Return the node as a JSON document. `sentences` say what is missing or doubtful; they become the document's
    notes."""
    return {"version": DOCUMENT_VERSION, **node_document(node), "notes": list(sentences)}


def name_and_time() -> str:
    """Return the text "NAME, TIME": this machine's name and the current time. It is written into files and pictures of
    the node."""
    return f"{platform.node()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def read_document(path: Path) -> tuple[Node, tuple[str, ...]]:
    """Return the node in a file, with the file's notes. Raises OSError if the file cannot be read, and SettingError if
    it contains no node."""
    document = read_json_object(path, partial(_refused, path))
    try:
        node = node_from(document)
    except NotReadyError as error:
        raise _refused(path, error.what) from error
    sentences = document.get("notes", [])
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise _refused(path, "its notes are no list of sentences")
    return node, tuple(sentences)


def _refused(path: Path, why: str) -> SettingError:
    hint = "save one with `nri-rdma snapshot -o FILE`, of this version"
    return SettingError(ErrorCode.SETTING, f"this is no snapshot of a node: {why}", where=str(path), hint=hint)

"""A node as a file: the one JSON document that `inventory -o json` prints and `snapshot` saves, and its reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any  # Any: a JSON document

from nri_rdma.control import DOCUMENT_VERSION, node_document, node_from
from nri_rdma.errors import ErrorCode, NotReadyError, SettingError
from nri_rdma.model.device import Node

MAX_BYTES = 16 << 20


def document_of(node: Node, sentences: tuple[str, ...]) -> dict[str, Any]:
    """The node, with what a reader has to know about it."""
    return {"version": DOCUMENT_VERSION, **node_document(node), "notes": list(sentences)}


def read_document(path: Path) -> tuple[Node, tuple[str, ...]]:
    """The node of a file, with the notes that were made on it. Raises SettingError when it holds none, or OSError."""
    document = _json(path)
    if not isinstance(document, dict):
        raise _refused(path, "it is no JSON object")
    if document.get("version") != DOCUMENT_VERSION:
        raise _refused(path, f"its version is {document.get('version')!r} instead of {DOCUMENT_VERSION}")
    try:
        node = node_from(document)
    except NotReadyError as error:
        raise _refused(path, error.what) from error
    sentences = document.get("notes", [])
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise _refused(path, "its notes are no list of sentences")
    return node, tuple(sentences)


def _json(path: Path) -> object:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _refused(path, f"it is larger than {MAX_BYTES} bytes")
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is no JSON: {error}") from error
    return document


def _refused(path: Path, why: str) -> SettingError:
    hint = "save one with `nri-rdma snapshot -o FILE`, of this version"
    return SettingError(ErrorCode.SETTING, f"this is no snapshot of a node: {why}", where=str(path), hint=hint)

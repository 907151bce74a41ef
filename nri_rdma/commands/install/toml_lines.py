"""Lines that we add to a TOML file of another program. Pure.

Law: removing our lines restores the earlier text byte by byte, even if other lines have changed since. Each of our
lines ends with a mark. A line that our line replaces is kept as a comment.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, TypeAlias  # Any: TOML documents

MARK = "# by `nri-rdma install containerd`"
"""The comment at the end of each of our lines."""
BEFORE = f"{MARK}, before: "
"""The beginning of a comment that keeps a line which one of our lines replaces."""
TablePath: TypeAlias = tuple[str, ...]


class CannotEditError(Exception):
    """The TOML text does not allow adding or replacing single lines; the message says why."""


def with_keys(text: str, path: TablePath, values: Mapping[str, Any]) -> str:
    """Return the text with these keys set in the table at `path`; an empty path means the top of the file.

    Raises tomllib.TOMLDecodeError if the text is not TOML. Raises CannotEditError if adding or replacing single lines
    would change anything else, or could not be undone by `without_ours`.
    """
    wanted = deepcopy(tomllib.loads(text))
    _table(wanted, path).update(values)
    lines = text.splitlines(keepends=True)
    first = _first_line(lines, path)
    if first is None:
        if text and not text.endswith("\n"):
            raise CannotEditError("its last line has no end")
        lines += [f"{header(path)}  {MARK}\n"]
        first = len(lines)
    last = next((number for number in range(first, len(lines)) if _header(lines[number]) is not None), len(lines))
    body = lines[first:last]
    for key, value in values.items():
        line = f"{key} = {toml_value(value)}  {MARK}\n"
        there = [number for number, it in enumerate(body) if _sets(it, key)]
        if there:
            body[there[0] : there[0] + 1] = [BEFORE + body[there[0]], _margin(body[there[0]]) + line]
        else:
            body.insert(0, _margin(lines[first - 1]) + line if path else line)
    edited = "".join((*lines[:first], *body, *lines[last:]))
    if not _means(edited, wanted) or without_ours(edited) != without_ours(text):
        raise CannotEditError(f"its table {'.'.join(path) or 'at the top'} is not written line by line")
    return edited


def without_ours(text: str) -> str:
    """Return the text without our lines. Lines that were replaced by our lines are restored."""
    kept = []
    for line in text.splitlines(keepends=True):
        if line.startswith(BEFORE):
            kept.append(line.removeprefix(BEFORE))
        elif not line.rstrip().endswith(MARK):
            kept.append(line)
    return "".join(kept)


def header(path: TablePath) -> str:
    """Return the line that begins the table at this path, such as `[plugins.cri]`."""
    return f"[{'.'.join(map(_key, path))}]"


def toml_value(value: Any) -> str:
    """Return a string or a list of strings in TOML syntax. It is the JSON text, which TOML reads equally."""
    return json.dumps(value, ensure_ascii=False)


def _table(document: dict[str, Any], path: TablePath) -> dict[str, Any]:
    for key in path:
        document = document.setdefault(key, {})
        if not isinstance(document, dict):
            raise CannotEditError(f"{key} is no table in it")
    return document


def _first_line(lines: list[str], path: TablePath) -> int | None:
    """Return the index of the first line of a table's body; None if no line of the text begins the table."""
    if not path:
        return 0
    return next((number for number, line in enumerate(lines, start=1) if _header(line) == path), None)


def _header(line: str) -> TablePath | None:
    """Return the path of the table that begins at this line; () for an array of tables, None if the line begins no
    table."""
    if not line.lstrip().startswith("["):
        return None
    if line.lstrip().startswith("[["):
        return ()
    try:
        found: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None  # a line inside an array
    path = []
    while isinstance(found, dict) and found:
        (key, found), *_ = found.items()
        path.append(key)
    return tuple(path)


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _sets(line: str, key: str) -> bool:
    """Return whether this line sets the key to a complete value. A value that continues on the next line does not
    count."""
    try:
        return key in tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return False


def _means(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else toml_value(key)

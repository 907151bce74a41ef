"""Readers of the configuration files of containerd and CRI-O. They skip what they cannot read: the files belong to
containerd and CRI-O, which report faults themselves."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: configurations of others


def read_toml(path: Path) -> Mapping[str, Any]:
    """Return the TOML file as a mapping; an empty one if the file is missing, unreadable or not valid TOML."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def table_at(document: Any, *keys: str) -> Mapping[str, Any]:
    """Return the table found by following the keys from the document's top; an empty one if there is no such table."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def texts(value: Any) -> tuple[str, ...]:
    """Return the strings of a list; an empty tuple if the value is not a list."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def crio_files(etc: Path) -> tuple[Path, ...]:
    """Return the paths of CRI-O's configuration files, in the order in which CRI-O reads them. If several files set a
    key, the last file wins."""
    return (etc / "crio/crio.conf", *sorted((etc / "crio/crio.conf.d").glob("*")))


def crio_hook_folders(etc: Path, share: Path) -> tuple[Path, ...]:
    """Return the folders in which CRI-O looks for OCI hooks: `hooks_dir` of the last file that sets it, otherwise the
    default folder below `share`."""
    folders: tuple[str, ...] = (str(share / "containers/oci/hooks.d"),)
    for path in crio_files(etc):
        folders = texts(table_at(read_toml(path), "crio", "runtime").get("hooks_dir")) or folders
    return tuple(Path(folder) for folder in folders)

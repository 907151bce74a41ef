"""Configurations of others, read as far as they can be; what is wrong with one is for its owner to judge."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: configurations of others


def read_toml(path: Path) -> Mapping[str, Any]:
    """Nothing when it is not there, or is no TOML."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def table_at(document: Any, *keys: str) -> Mapping[str, Any]:
    """The table at a path of keys; an empty one where there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def texts(value: Any) -> tuple[str, ...]:
    """The texts in a list; none in what is no list."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def crio_files(etc: Path) -> tuple[Path, ...]:
    """CRI-O's configuration; of one setting the last file counts."""
    return (etc / "crio/crio.conf", *sorted((etc / "crio/crio.conf.d").glob("*")))


def crio_hook_folders(etc: Path, share: Path) -> tuple[Path, ...]:
    """CRI-O's hooks_dir; the last file that sets it counts."""
    folders: tuple[str, ...] = (str(share / "containers/oci/hooks.d"),)
    for path in crio_files(etc):
        folders = texts(table_at(read_toml(path), "crio", "runtime").get("hooks_dir")) or folders
    return tuple(Path(folder) for folder in folders)

"""The configuration of a daemon that the runtime starts as a pre-installed NRI plugin: the runtime sends it a file,
which replaces config.toml."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nri_rdma.commands.common.runtime_configs import crio_files, read_toml, table_at
from nri_rdma.doors.nri.identity import DEFAULT_NAME, identify

_NRI_TABLE = "io.containerd.nri.v1.nri"
_PLUGINS, _DROP_INS = Path("opt/nri/plugins"), Path("etc/nri/conf.d")


def sent_config(etc: Path = Path("/etc")) -> Path | None:
    """Return the file that the runtime sends to the pre-installed nri-rdma plugin: NN-name.conf, otherwise name.conf.
    None if no such plugin is installed, or if the file is missing or empty."""
    for plugins, drop_ins in _folders(etc):
        for program in sorted(plugins.glob("[0-9][0-9]-*")):
            who = identify(name=None, index=None, environment={}, program=program.name)
            if DEFAULT_NAME not in {who.name, program.resolve().name} or not os.access(program, os.X_OK):
                continue
            names = (f"{who.index}-{who.name}.conf", f"{who.name}.conf")
            file = next((drop_ins / name for name in names if _is_there(drop_ins / name)), None)
            return file if file is not None and _is_told(file) else None
    return None


def _folders(etc: Path) -> Iterator[tuple[Path, Path]]:
    """Yield pairs of folders: the folder of NRI plugins, and the folder of their configurations. The pairs are those in
    the configurations of containerd and CRI-O, or the defaults."""
    usual_plugins, usual_drop_ins = etc.parent / _PLUGINS, etc.parent / _DROP_INS
    nri = table_at(read_toml(etc / "containerd/config.toml"), "plugins", _NRI_TABLE)
    yield (
        Path(nri.get("plugin_path") or usual_plugins),
        Path(nri.get("plugin_config_path") or usual_drop_ins),
    )
    plugins, drop_ins = usual_plugins, usual_drop_ins
    for path in crio_files(etc):
        crio = table_at(read_toml(path), "crio", "nri")
        plugins = Path(crio.get("nri_plugin_dir") or plugins)
        drop_ins = Path(crio.get("nri_plugin_config_dir") or drop_ins)
    yield plugins, drop_ins


def _is_there(file: Path) -> bool:
    """Return whether the file exists; False also if this user may not see it."""
    try:
        return file.exists()
    except PermissionError:
        return False


def _is_told(file: Path) -> bool:
    """Return whether the file has any content. An unreadable file counts: the reader of the configuration reports the
    error."""
    try:
        return bool(file.read_bytes().strip())
    except OSError:
        return True

"""The configuration of a daemon that the runtime starts: the file that it is sent in place of the usual one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nri_rdma.commands.doctor.configuration import crio_files, read_toml, table_at
from nri_rdma.doors.nri.identity import DEFAULT_NAME, identify

_NRI_TABLE = "io.containerd.nri.v1.nri"
_PLUGINS, _DROP_INS = Path("opt/nri/plugins"), Path("etc/nri/conf.d")


def sent_config(etc: Path = Path("/etc")) -> Path | None:
    """Return the file that the runtime sends to the nri-rdma in its plugin folder: NN-name.conf, else name.conf.
    None if it starts none, or sends it nothing."""
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
    """Yield the folders of plugins and of their configurations, as containerd and CRI-O are told, or by default."""
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
    """Return whether the file exists, as far as this user may know."""
    try:
        return file.exists()
    except PermissionError:
        return False


def _is_told(file: Path) -> bool:
    """Return whether the file says anything; unreadable counts, because its reader then says why."""
    try:
        return bool(file.read_bytes().strip())
    except OSError:
        return True

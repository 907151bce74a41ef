"""An OCI image made of busybox alone, the pause image and the workload of every pod of the rig."""

from collections.abc import Mapping
from pathlib import Path

from tests.rig.oci import Layer, oci_archive

IMAGE = "localhost/pause:1"
_APPLETS = (
    "sh sleep ls cat ip id env stat dd mknod echo test true false readlink ping nc grep wc head kill ps mount mkdir rm "
    "touch tr cut hostname"
)
_FOLDERS = ("bin", "dev", "proc", "sys", "tmp", "etc", "run")
PAUSE = "/bin/sleep 1000000000"
NOTHING_MORE = Layer(files={})
# A process 1 without handlers ignores SIGTERM: CRI-O would wait for it before it kills.
_CONFIG = {"Entrypoint": PAUSE.split(), "Env": ["PATH=/bin"], "StopSignal": "SIGKILL"}


def write_image(
    busybox: Path,
    target: Path,
    name: str = IMAGE,
    scripts: Mapping[str, str] | None = None,
    more: Layer = NOTHING_MORE,
) -> None:
    """Writes the OCI layout tar that `ctr images import` takes. `scripts` are more programs, by their names, and `more`
    are other files."""
    links = {f"bin/{applet}": "busybox" for applet in _APPLETS.split()}
    files = {"bin/busybox": busybox.read_bytes()}
    files |= {f"bin/{program}": f"#!/bin/sh\n{script}\n".encode() for program, script in (scripts or {}).items()}
    layer = Layer(files=files | dict(more.files), links=links | dict(more.links), folders=(*_FOLDERS, *more.folders))
    target.write_bytes(oci_archive(name, layer, _CONFIG))

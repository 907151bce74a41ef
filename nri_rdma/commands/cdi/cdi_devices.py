"""The CDI spec that `nri-rdma install podman` writes for the devices of this node, in a file that only this command
writes."""

from __future__ import annotations

import json
from pathlib import Path

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.registry import Registry
from nri_rdma.cdi.spec import Spec
from nri_rdma.commands.cdi.generate import NIC
from nri_rdma.commands.cdi.hooked_devices import PROGRAM
from nri_rdma.commands.common.changes import OwnFile, carry_out_all, to_remove
from nri_rdma.text.refusals import listed

FILE = "nri-rdma-podman.json"


def cdi_file(folder: Path, spec: Spec | None) -> OwnFile:
    """Return the file that contains the spec. With None, the file is empty and only serves to be removed."""
    devices = [device.name for device in spec.devices] if spec is not None else []
    return OwnFile(
        path=folder / FILE,
        data=encode(spec) if spec is not None else b"",
        is_ours=_is_ours,
        about=f"for `podman run --device {NIC}=NAME`: {listed(devices)}",
    )


def made_by_others(registry: Registry, folder: Path) -> str:
    """Return the path of another file that defines CDI devices of our kind; "" if there is none. CDI rejects a device
    that two files define."""
    files = (it.file for name, it in registry.devices.items() if name.startswith(f"{NIC}="))
    return next((file for file in files if Path(file) != folder / FILE), "")


def own_names(registry: Registry, folder: Path) -> set[str]:
    """Return the names of the CDI devices that our file defines now."""
    return {it.device.name for it in registry.devices.values() if Path(it.file) == folder / FILE}


def take_out(folder: Path) -> Path | None:
    """Remove our file, because another file is about to define its devices. Returns its path; None if it did not exist.

    Raises OSError if the file cannot be removed, and NriRdmaError if nri-rdma did not make it.
    """
    changes = to_remove([cdi_file(folder, None)])
    carry_out_all(changes)
    return changes[0].file.path if changes else None


def _is_ours(data: bytes) -> bool:
    try:
        document = json.loads(data)
        return document["kind"] == str(NIC) and PROGRAM.encode() in data
    except (ValueError, KeyError, TypeError):
        return False

"""Writes the text of a spec: JSON that JSON and YAML readers understand alike, always the same for the same spec.

Like the Go library it leaves out values that are None, empty or false. Reading the text gives an equal spec.
"""

from __future__ import annotations

import json
import re
from typing import Any  # Any: JSON values

from nri_rdma.cdi.spec import Device, DeviceNode, Edits, Hook, IntelRdt, Mount, Spec


def encode(spec: Spec) -> bytes:
    """Return the text of the file for a spec."""
    text = json.dumps(spec_document(spec), indent=2, ensure_ascii=False)
    return _UNPRINTABLE.sub(_escaped, text).encode() + b"\n"


def spec_document(spec: Spec) -> dict[str, Any]:
    """Return the spec as a JSON object, with its keys in the order of the schema."""
    return {
        "cdiVersion": str(spec.version),
        "kind": str(spec.kind),
        **_kept(annotations=dict(spec.annotations)),
        "devices": [_device(device) for device in spec.devices],
        **_kept(containerEdits=edits_document(spec.edits)),
    }


def edits_document(edits: Edits) -> dict[str, Any]:
    """Return edits as a JSON object."""
    return _kept(
        env=list(edits.env),
        deviceNodes=[_device_node(node) for node in edits.device_nodes],
        netDevices=[{"hostInterfaceName": it.host_interface_name, "name": it.name} for it in edits.net_devices],
        hooks=[_hook(hook) for hook in edits.hooks],
        mounts=[_mount(mount) for mount in edits.mounts],
        additionalGids=list(edits.additional_gids),
    ) | ({} if edits.intel_rdt is None else {"intelRdt": _intel_rdt(edits.intel_rdt)})


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        **_kept(annotations=dict(device.annotations)),
        "containerEdits": edits_document(device.edits),
    }


def _device_node(node: DeviceNode) -> dict[str, Any]:
    numbers = {"major": node.major, "minor": node.minor, "fileMode": node.file_mode, "uid": node.uid, "gid": node.gid}
    return {
        "path": node.path,
        **_kept(hostPath=node.host_path, type=str(node.type or ""), permissions=node.permissions),
        **{key: value for key, value in numbers.items() if value is not None},  # 0 is a valid number
    }


def _hook(hook: Hook) -> dict[str, Any]:
    return {
        "hookName": str(hook.hook_name),
        "path": hook.path,
        **_kept(args=list(hook.args), env=list(hook.env)),
        **({} if hook.timeout is None else {"timeout": hook.timeout}),
    }


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        **_kept(options=list(mount.options), type=mount.type),
    }


def _intel_rdt(rdt: IntelRdt) -> dict[str, Any]:
    return {
        **_kept(closID=rdt.clos_id, l3CacheSchema=rdt.l3_cache_schema, memBwSchema=rdt.mem_bw_schema),
        **({} if rdt.schemata is None else {"schemata": list(rdt.schemata)}),  # an empty list differs from no list
        **_kept(enableMonitoring=rdt.enable_monitoring),
    }


def _kept(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


_UNPRINTABLE = re.compile("[\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff\x85\u2028\u2029]")
"""Characters that JSON allows unescaped, but that YAML forbids or reads as a line end. Other non-ASCII characters are
not escaped: YAML would not join the two halves of an escaped surrogate pair."""


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"

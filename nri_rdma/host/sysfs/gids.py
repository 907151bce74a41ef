"""Reads the GID tables of RDMA devices from sysfs.

A table has up to 1024 entries, most of them unused. The kernel shows an unused entry as zeros, and answers EINVAL for
its type.
"""

from __future__ import annotations

from ipaddress import IPv6Address

from nri_rdma.host.sysfs.attributes import entries, read, whole_number
from nri_rdma.model.gid import Gid, GidType

_UNUSED = "0000:0000:0000:0000:0000:0000:0000:0000"
_TYPES = {it.value: it for it in GidType}
_OLD_TYPE = "IB/RoCE v1"
"""The type that kernels before 5.15 show for an entry of type IB and for one of type RoCE v1. The port's link layer
says which of the two it is."""
_INFINIBAND = "InfiniBand"


def read_gids(sysfs_root: str, device: str, port: int, gap: int) -> tuple[Gid, ...] | None:
    """Return the used GIDs of a port in the order of their indices; reading stops after `gap` unused entries in a row.
    None if the port has no GID table: the device is gone, or its driver has no table.

    For an InfiniBand port, return only the first GID, with which it sends.
    """
    folder = f"{sysfs_root}/class/infiniband/{device}/ports/{port}"
    indices = sorted(index for name in entries(f"{folder}/gids") if (index := whole_number(name)) is not None)
    if not indices:
        return None
    is_infiniband = read(f"{folder}/link_layer") == _INFINIBAND
    old_type = GidType.IB if is_infiniband else GidType.ROCE_V1
    found: list[Gid] = []
    unused = 0
    for index in indices:
        gid = _gid(folder, index, old_type)
        unused = unused + 1 if gid is None else 0
        if gid is not None:
            found.append(gid)
        if unused == gap or (found and is_infiniband):
            break
    return tuple(found)


def _gid(folder: str, index: int, old_type: GidType) -> Gid | None:
    """Return the entry `index` of a port's GID table; None if it is unused, or was removed while it was read. `folder`
    is the port's folder. `old_type` is the type of entries for which an old kernel shows only "IB/RoCE v1"."""
    text = read(f"{folder}/gids/{index}")
    if not text or text == _UNUSED:
        return None
    told = read(f"{folder}/gid_attrs/types/{index}")
    kind = old_type if told == _OLD_TYPE else _TYPES.get(told)
    if kind is None:
        return None
    return Gid(index=index, value=IPv6Address(text), type=kind, netdev=read(f"{folder}/gid_attrs/ndevs/{index}"))

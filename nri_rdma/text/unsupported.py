"""Keys from other network drivers' configurations (DRANET's and sriov-cni's) that nri-rdma does not support yet.

Authors migrate with such keys. The keys are therefore refused with advice what to do instead, and not as unknown words.
docs/requests.md lists the keys, and a test compares the two lists.
"""

from __future__ import annotations

from collections.abc import Mapping

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.refusals import MAX_QUOTED, folded, listed, quoted, unknown_key

_ON_THE_HOST = "the node's administrator can set it on the host, for the VF (ip link set PF vf N ...)"
_STATIC = "write interface.addresses, or let an init container with the capability NET_ADMIN set addresses in the pod"
_NOWHERE = "nothing of nri-rdma does it"

UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(("dhcp", "addressing", "ipRanges", "ipam"), _STATIC),
    **dict.fromkeys(("type", "ipvlan"), "the netdev itself moves into the pod"),
    **dict.fromkeys(("vlan", "vlanQoS", "vlanProto", "mac", "spoofchk", "trust"), _ON_THE_HOST),
    **dict.fromkeys(("link_state", "min_tx_rate", "max_tx_rate"), _ON_THE_HOST),
    "profile": _NOWHERE,
}
"""By unsupported key: the advice what to do instead."""
_BY_FOLDED = {folded(key): text for key, text in UNSUPPORTED.items()}


def unknown_request_key(key: str, known: tuple[str, ...], where: str) -> RequestError:
    """Return the error for a key that requests do not have. If the key is in UNSUPPORTED, the error says so, and its
    hint says what to do instead."""
    instead = _BY_FOLDED.get(folded(key[:MAX_QUOTED]))
    if instead is None:
        return unknown_key(key, known, where)
    hint = f"leave it out; {instead}; the keys are {listed(known)}"
    what = f"{quoted(key)} is not supported yet"
    return RequestError(ErrorCode.ANNOTATION_UNKNOWN_KEY, what, where=where, hint=hint, key=key)

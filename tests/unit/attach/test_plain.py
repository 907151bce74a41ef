"""Typed values are read from plain ones, and nothing that does not fit is taken."""

import pytest

from nri_rdma.attach.plain import from_plain
from nri_rdma.attach.port import NamespaceIdentity


@pytest.mark.parametrize(
    "value",
    [
        {"boot_id": "b", "cookie": 1},
        {"boot_id": "b", "cookie": "1", "path": "p"},
        {"boot_id": "b", "cookie": True, "path": "p"},
        {"boot_id": None, "cookie": 1, "path": "p"},
        {"boot_id": "b", "cookie": 1, "path": "p", "more": 1},
        [],
        "b",
        None,
    ],
)
def test_missing_unknown_and_mistyped_fields_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="NamespaceIdentity"):
        from_plain(NamespaceIdentity, value)

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


@pytest.mark.parametrize("value", [[1], [1, 2, 3], "12", {"1": 1, "2": 2}, [1, "2"], None])
def test_a_pair_of_numbers_is_a_list_of_two_numbers(value: object) -> None:
    assert from_plain(tuple[int, int], [1, 2]) == (1, 2)
    with pytest.raises(ValueError, match="tuple"):
        from_plain(tuple[int, int], value)


@pytest.mark.parametrize("value", ["12", {"1": 1}, [1, "2"], 1, None])
def test_a_tuple_of_any_length_is_a_list(value: object) -> None:
    assert from_plain(tuple[int, ...], []) == ()
    assert from_plain(tuple[int, ...], [1, 2, 3]) == (1, 2, 3)
    with pytest.raises(ValueError, match="tuple"):
        from_plain(tuple[int, ...], value)

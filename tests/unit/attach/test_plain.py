"""Typed values are read from plain ones, and nothing that does not fit is taken."""

from ipaddress import IPv4Interface, IPv6Interface

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


@pytest.mark.parametrize(
    ("kind", "other"), [(IPv4Interface, "fd00::1/64"), (IPv6Interface, "10.0.0.1/24"), (IPv4Interface, 167772161)]
)
def test_an_address_is_the_text_of_one_of_its_family(kind: type, other: object) -> None:
    text = "10.0.0.1/24" if kind is IPv4Interface else "fd00::1/64"
    assert from_plain(kind, text) == kind(text)
    with pytest.raises(ValueError, match="Interface"):
        from_plain(kind, other)


@pytest.mark.parametrize("other", [b"\x00\x01", 1, None, ["AAE="], "AAE", "A*A=E", "AAE=\n"])
def test_bytes_are_a_text_in_base64(other: object) -> None:
    assert from_plain(bytes, "AAE=") == b"\x00\x01"
    with pytest.raises(ValueError, match=r"bytes|base64|padding|str"):
        from_plain(bytes, other)

"""Which texts are addresses of a host."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.usage import parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.7", IPv4Address("10.0.0.7")),
        ("255.255.255.255", IPv4Address("255.255.255.255")),
        ("127.0.0.1", IPv4Address("127.0.0.1")),
        ("2001:DB8:0::7", IPv6Address("2001:db8::7")),
        ("::1", IPv6Address("::1")),
        ("fe80::1%eth0", IPv6Address("fe80::1%eth0")),
    ],
)
def test_an_address_is_read(text: str, address: IPv4Address | IPv6Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["0.0.0.0", "::", "0:0:0:0:0:0:0:0"])
def test_the_address_of_every_link_is_none(text: str) -> None:
    assert parse_address(text) is None


@pytest.mark.parametrize(
    "text", ["", " ", "10.0.0", "10.0.0.7 ", "10.0.0.7/24", "10.0.0.256", "010.0.0.7", "[::1]", "::1:", "node-7", "7"]
)
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse_address(text) is None


@given(st.ip_addresses())
def test_any_address_is_read_as_it_is_written_unless_it_is_unspecified(address: IPv4Address | IPv6Address) -> None:
    assert parse_address(str(address)) == (None if int(address) == 0 else address)


@given(st.text("0123456789abcdef:.%/[] ", max_size=20) | st.text(max_size=20))
def test_whatever_is_written_is_an_address_or_none(text: str) -> None:
    address = parse_address(text)
    assert address is None or (ip_address(text) == address and int(address) != 0)

"""Addresses to listen at, as they are written."""

import pytest

from nri_rdma.model.listen_address import parse_listen_address


@pytest.mark.parametrize("text", ["127.0.0.1:9178", "0.0.0.0:1", "[::]:9178", "[::1]:65535", "[fd00::1]:80"])
def test_an_address_with_a_port_is_read_and_written_the_same(text: str) -> None:
    found = parse_listen_address(text)
    assert str(found) == text
    assert found is not None and found.port == int(text.rpartition(":")[2])


@pytest.mark.parametrize(
    "text",
    [
        "", "9178", ":9178", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:http", "::1:9178",
        "[::1]", "[127.0.0.1]:9178", "localhost:9178", "[fe80::1%eth0]:9178", "127.0.0.1:9178 ", "[::]:9178/metrics",
        "127.0.0.1:٣", "http://127.0.0.1:9178",
    ],
)  # fmt: skip
def test_nothing_else_is_one(text: str) -> None:
    assert parse_listen_address(text) is None

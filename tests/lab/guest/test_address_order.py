"""IPv6 addresses that are added again as they were captured are in the order of before, on this kernel."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from nri_rdma.host.netlink.restore.link_contents import captured_addresses, read_addresses
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket

LINK = "order0"


@pytest.fixture
def link() -> Iterator[int]:
    """The number of a link with three addresses."""
    _ip("link", "add", LINK, "type", "dummy")
    for address in ("fd00::2/64", "fd00::1/64", "fd00:5::1/64"):
        _ip("address", "add", address, "dev", LINK)
    yield json.loads(_ip("-j", "link", "show", LINK))[0]["ifindex"]
    _ip("link", "delete", LINK)


def test_ipv6_addresses_that_are_added_again_are_in_the_order_of_before(link: int) -> None:
    before = _listed()
    with RouteSocket() as route:
        captured = captured_addresses(read_addresses(route, link))
    for address in before:
        _ip("address", "delete", f"{address}/64", "dev", LINK)
    for it in captured:
        _ip("address", "add", it.text.split()[0], "dev", LINK)
    assert _listed() == before


def _listed() -> list[str]:
    (shown,) = json.loads(_ip("-j", "-6", "address", "show", "dev", LINK))
    return [it["local"] for it in shown["addr_info"]]


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout

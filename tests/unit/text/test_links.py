"""Names, addresses, networks and MACs: what the kernel takes, and nothing that means something else."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from nri_rdma.errors import RequestError
from nri_rdma.text.links import hardware_address, host_address, netdev_name, network
from nri_rdma.text.nodes import Scalar


def node(text: str) -> Scalar:
    return Scalar(text, plain=False)


@pytest.mark.parametrize(
    ("text", "mac"),
    [
        ("02:00:5E:10:00:01", "02:00:5e:10:00:01"),
        ("02-00-5e-10-00-01", "02:00:5e:10:00:01"),
        ("00:11:22:33:44:55", "00:11:22:33:44:55"),
    ],
)
def test_a_mac_is_written_with_colons_or_hyphens(text: str, mac: str) -> None:
    assert hardware_address(node(text), "here") == mac


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ff:ff:ff:ff:ff:ff", "the broadcast MAC"),
        ("00:00:00:00:00:00", "no MAC"),
        ("01:00:5e:00:00:01", "a multicast MAC"),
        ("33:33:00:00:00:01", "a multicast MAC"),
        ("02:00:5e:10:00", "is not a MAC"),
        ("02:00:5e:10:00:01:02:03", "is not a MAC"),
        ("0200.5e10.0001", "is not a MAC"),
        ("02:00-5e:10:00:01", "is not a MAC"),
        ("", "is not a MAC"),
    ],
)
def test_a_mac_of_no_single_station_is_refused(text: str, what: str) -> None:
    with pytest.raises(RequestError, match=what):
        hardware_address(node(text), "here")


@pytest.mark.parametrize("text", ["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/64", "10.0.0.1/32", "224.0.0.0/4"])
def test_a_network_has_its_prefix_length(text: str) -> None:
    assert network(node(text), "here") == ip_network(text)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1",
        "fd00::1",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0/8",
        "127.0.0.0/8",
        "::1/128",
        "fe80::%eth0/64",
        "x",
        "",
    ],
)
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="here"):
        network(node(text), "here")


def test_the_address_of_a_host_in_a_network_is_refused_with_the_network() -> None:
    with pytest.raises(RequestError, match=r"Next: write 10\.0\.0\.0/8"):
        network(node("10.1.2.3/8"), "here")


def test_an_address_has_no_prefix_length() -> None:
    assert host_address(node("fd00::1"), "here") == ip_address("fd00::1")


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1/24", "0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::ffff:10.0.0.1", "fe80::1%a"],
)
def test_what_is_no_address_of_a_host_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="here"):
        host_address(node(text), "here")


@pytest.mark.parametrize("name", ["lo", "all", "default", ".", "..", "a/b", "a b", "a" * 16])
def test_a_name_that_no_link_has_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="here"):
        netdev_name(node(name), "here")

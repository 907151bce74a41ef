"""Captured addresses, routes and neighbours are shown as `ip` shows them."""

import pytest

from nri_rdma.model.ip_words import ip_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "10.1.0.0/16 type 1 proto 3 scope 0 tos 0 via 10.0.0.9 table 254 attribute-8 0800020068100000",
            "10.1.0.0/16 via 10.0.0.9 mtu 4200",
        ),
        ("0.0.0.0/0 type 1 proto 16 scope 0 tos 0 via 10.0.0.9 src 10.0.0.1 metric 6 table 100",
         "default via 10.0.0.9 table 100 proto dhcp src 10.0.0.1 metric 6"),
        ("10.0.0.0/24 type 1 proto 2 scope 253 tos 0 src 10.0.0.1 table 254",
         "10.0.0.0/24 proto kernel scope link src 10.0.0.1"),
        ("fd00::/64 type 1 proto 2 scope 0 tos 0 onlink metric 256 table 254 attribute-20 00",
         "fd00::/64 proto kernel metric 256 onlink pref medium"),
        ("10.9.0.9/32 type 6 proto 4 scope 0 tos 16 table 255", "blackhole 10.9.0.9 table local proto static tos 16"),
        ("10.5.0.0/16 type 1 proto 99 scope 7 tos 0 table 1000 attribute-77 ab",
         "10.5.0.0/16 table 1000 proto 99 scope 7 attribute-77 ab"),
        ("10.0.0.1/24 peer 10.0.0.1 scope 0 flags 0x80 broadcast 10.0.0.255 label rail0",
         "10.0.0.1/24 brd 10.0.0.255 scope global label rail0"),
        ("10.0.3.1/32 peer 10.0.3.2 scope 253 flags 0x1280 rt_priority 50 proto 3",
         "10.0.3.1/32 peer 10.0.3.2 scope link noprefixroute flags 0x1000 metric 50 proto kernel_ll"),
        ("neighbour 10.0.0.2 lladdr 02:11:00:00:aa:01 flags 0x0 type 1",
         "neighbour 10.0.0.2 lladdr 02:11:00:00:aa:01 PERMANENT"),
        ("neighbour fd00::1 lladdr None flags 0x8 type 1", "neighbour fd00::1 proxy"),
        ("00064100/20 type 1 proto 4 scope 0 tos 0", "00064100/20 proto static"),
        ("qdisc tbf 8001: root", "qdisc tbf 8001: root"),
        ("1.2.3.0/24 type 1 proto 3 scope 0 tos 0 attribute-8 080002006810000008001e0001000000",
         "1.2.3.0/24 mtu 4200 metric-30 1"),
    ],
)  # fmt: skip
def test_it_is_written_as_ip_writes_it(text: str, words: str) -> None:
    assert ip_words(text) == words

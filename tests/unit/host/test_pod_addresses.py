"""The addresses of a network namespace are those by which it is reached."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path

from nri_rdma.host.pod_addresses import MOST, addresses_of

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 6
     |-- 192.0.2.0
        /24 link UNICAST
Local:
  +-- 0.0.0.0/0 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
     +-- 192.0.2.0/24 2 0 2
        |-- 192.0.2.2
           /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
Local:
        |-- 192.0.2.2
           /32 host LOCAL
"""
IF_INET6 = """fe8000000000000000fc00fffe000001 04 40 20 80     eth0
fd000000000000000000000000000002 04 40 00 82     eth0
00000000000000000000000000000001 01 80 10 80       lo
"""


def test_loopback_link_local_and_routes_are_none(tmp_path: Path) -> None:
    (tmp_path / "7/net").mkdir(parents=True)
    (tmp_path / "7/net/fib_trie").write_text(FIB_TRIE)
    assert addresses_of(7, tmp_path) == (ip_address("192.0.2.2"),), "a kernel without IPv6"
    (tmp_path / "7/net/if_inet6").write_text(IF_INET6)
    assert addresses_of(7, tmp_path) == (ip_address("192.0.2.2"), ip_address("fd00::2"))


def test_of_very_many_those_of_a_netdevs_network_come_first(tmp_path: Path) -> None:
    (tmp_path / "7/net").mkdir(parents=True)
    services = [f"        |-- 10.96.{it // 256}.{it % 256}\n           /32 host LOCAL\n" for it in range(2000)]
    link = "     |-- 192.0.2.0\n        /32 link BROADCAST\n        /24 link UNICAST\n"
    (tmp_path / "7/net/fib_trie").write_text(f"Main:\n{''.join(services)}{link}{FIB_TRIE.partition('Local:')[2]}")
    (tmp_path / "7/net/if_inet6").write_text(f"fd{'0' * 29}9 09 80 00 80 kube-ipvs0\n{IF_INET6}")
    found = addresses_of(7, tmp_path)
    assert len(found) == MOST
    assert [str(it) for it in found[:3]] == ["192.0.2.2", "fd00::2", "10.96.0.0"]


def test_a_process_that_cannot_be_seen_has_none(tmp_path: Path) -> None:
    assert addresses_of(7, tmp_path) == ()


def test_the_kernels_own_files_are_read() -> None:
    assert not any(it.is_loopback for it in addresses_of(os.getpid()))

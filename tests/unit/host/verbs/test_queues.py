"""Queue pairs: what pyverbs is told."""

from __future__ import annotations

from ipaddress import IPv6Address

from nri_rdma.host.verbs.queues import words_of


def test_a_gid_of_ipv4_is_written_in_eight_groups_by_every_python() -> None:
    assert words_of(IPv6Address("::ffff:192.0.2.1")) == "0000:0000:0000:0000:0000:ffff:c000:0201"

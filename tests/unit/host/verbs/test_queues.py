"""Queue pairs: what pyverbs is told."""

from __future__ import annotations

from ipaddress import IPv6Address

from nri_rdma.host.verbs.queues import words_of
from nri_rdma.host.verbs.selfcheck import check
from tests.fakes.pyverbs import PAIRS, Hca, PortAttr, installed


def test_a_gid_of_ipv4_is_written_in_eight_groups_by_every_python() -> None:
    assert words_of(IPv6Address("::ffff:192.0.2.1")) == "0000:0000:0000:0000:0000:ffff:c000:0201"


def test_a_queue_pair_has_the_p_key_that_its_port_sends_by() -> None:
    task = {"device": "mlx5_0", "port": 1, "memory_bytes": 8192, "transfer_bytes": 4096}
    for has_rc in (True, False):
        hca = Hca(
            "mlx5_0", port=PortAttr(link_layer=1), gids=(("fe80::1:2", 0),), pkeys=(0x7FFF, 0xFFFF), has_rc=has_rc
        )
        with installed(hca):
            assert "problem" not in check(task)
        assert PAIRS[len(PAIRS)].attributes.pkey_index == 1

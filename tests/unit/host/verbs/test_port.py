"""Whether a port can send, and by which entry of its GID table."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.decide.proof import LIMITED_MEMBER
from nri_rdma.host.verbs import port
from nri_rdma.host.verbs.port import SendingPort, look_at
from nri_rdma.host.verbs.steps import StepError
from tests.fakes.pyverbs import Context, Hca, PortAttr, installed

INFINIBAND = PortAttr(link_layer=1, lid=7)


def looked_at(hca: Hca, **more: Any) -> SendingPort:
    with installed(hca):
        return look_at(Context(hca.name), {"device": hca.name, "port": 1, **more}, {})


def refusal(hca: Hca, **more: Any) -> tuple[str, str]:
    with pytest.raises(StepError) as caught:
        looked_at(hca, **more)
    return str(caught.value.problem["step"]), str(caught.value)


def test_a_pods_own_address_is_what_it_sends_by() -> None:
    table = (("fe80::1", 2), ("::ffff:192.0.2.1", 2), ("::ffff:10.0.0.2", 1), ("::ffff:10.0.0.2", 2))
    found = looked_at(Hca("mlx5_0", gids=table), addresses=["10.0.0.2"])
    assert (found.transport, found.gid and found.gid.index) == ("roce", 3)
    older = looked_at(Hca("mlx5_0", gids=table), addresses=["10.0.0.2"], roce_version=1)
    assert older.gid is not None
    assert older.gid.index == 2


def test_an_address_that_is_tested_for_duplicates_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "if_inet6"
    monkeypatch.setattr(port, "ADDRESSES", listed)
    hca = Hca("mlx5_0", gids=(("fe80::1", 2),))
    table = (
        "fe800000000000000000000000000001 02 40 20 {flags} eth0\nfe800000000000000000000000000002 03 40 20 c0 eth1\n"
    )
    listed.write_text(table.format(flags="c0"))
    tested = threading.Timer(0.3, listed.write_text, [table.format(flags="80")])
    began = time.monotonic()
    tested.start()
    looked_at(hca)
    tested.join()
    assert 0.3 <= time.monotonic() - began < 2
    monkeypatch.setattr(port, "_TEST_S", 0.1)
    listed.write_text(table.format(flags="c0"))
    assert looked_at(hca).gid is not None, "a test that does not end is not waited for"


def test_infiniband_sends_by_its_first_gid() -> None:
    found = looked_at(Hca("mlx5_0", port=INFINIBAND, gids=(("fe80::1:2", 0),)))
    assert (found.transport, found.lid, str(found.gid and found.gid.type)) == ("ib", 7, "IB")


def test_iwarp_has_no_use_for_gids() -> None:
    found = looked_at(Hca("siw0", transport_type=1, gids=()))
    assert (found.transport, found.gid) == ("iwarp", None)


def test_a_port_that_is_down_cannot_send() -> None:
    told = refusal(Hca("mlx5_0", port=PortAttr(state=1, phys_state=3)))
    assert told == ("port", "port 1 is DOWN (physical state Disabled)")


def test_a_limited_member_of_its_partitions_is_refused_on_infiniband_only() -> None:
    step, text = refusal(Hca("mlx5_0", port=INFINIBAND, pkeys=(0x7FFF, 0, 0x12)))
    assert (step, text) == (
        "port",
        f"the P_Keys of port 1 are 0x7fff, 0x0012: the port is {LIMITED_MEMBER} of each partition",
    )
    assert looked_at(Hca("mlx5_0", pkeys=(0x7FFF,))).transport == "roce"


def test_infiniband_sends_by_its_first_p_key_of_a_full_member() -> None:
    gids = (("fe80::1:2", 0),)
    for pkeys, index in (((0xFFFF, 0x8012), 0), ((0x7FFF, 0xFFFF), 1), ((0x7FFF, 0, 0x8012), 2)):
        assert looked_at(Hca("mlx5_0", port=INFINIBAND, gids=gids, pkeys=pkeys)).pkey_index == index


def test_a_table_without_the_wanted_gid_is_listed() -> None:
    has = "it has 0 fe80::1 (RoCE v2), 1 ::ffff:192.0.2.1 (RoCE v2)"
    assert refusal(Hca("mlx5_0"), gid_index=3) == ("gid", f"index 3 of the GID table of port 1 is empty; {has}")
    lacks = "the GID table of port 1 has no entry of RoCE v2; it has nothing"
    assert refusal(Hca("mlx5_0", gids=())) == ("gid", lacks)

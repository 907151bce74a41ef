"""Differences of two looks at a host are sentences."""

from tests.rig.hoststate import HostState, difference

NOTHING = HostState(links={}, addresses={}, neighbours={}, routes={}, rules={})


def test_a_state_equals_itself() -> None:
    state = HostState(links={1: {"ifname": "lo", "mtu": 65536}}, addresses={}, neighbours={}, routes={}, rules={})
    assert difference(state, state) == []


def test_what_is_gone_new_or_changed_is_said() -> None:
    before = HostState(
        links={1: {"ifname": "a", "mtu": 1500}, 2: {"ifname": "b"}},
        addresses={"192.0.2.1/24 of a": {"local": "192.0.2.1"}},
        neighbours={},
        routes={},
        rules={},
    )
    after = HostState(
        links={1: {"ifname": "z", "mtu": 1500, "ifalias": "x"}, 3: {"ifname": "c"}},
        addresses={},
        neighbours={},
        routes={"192.0.2.0/24": {"dst": "192.0.2.0/24"}},
        rules={},
    )
    assert difference(before, after) == [
        'link a (index 1): ifalias was absent, is "x"',
        'link a (index 1): ifname was "a", is "z"',
        "link b (index 2) is gone: ifname=b",
        "link c (index 3) is new: ifname=c",
        "address 192.0.2.1/24 of a is gone: local=192.0.2.1",
        "route 192.0.2.0/24 is new: dst=192.0.2.0/24",
    ]
    assert len(difference(NOTHING, after)) == 3

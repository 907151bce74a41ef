"""What comes along, in words."""

from nri_rdma.model.inherited import Brought, Takes
from nri_rdma.model.link import Captured

THING = Captured(text="10.0.0.0/8 type 1", raw=b"", kernel_made=False)


def test_what_is_different_in_the_pod_is_told() -> None:
    assert str(Brought(thing=THING)) == THING.words
    assert str(Brought(thing=THING, is_sourceless=True, table=7)) == f"{THING.words}, without src, in table 7"
    assert str(Brought(thing=THING, is_alone=True)) == f"{THING.words}, without the route to its network"


def test_what_a_netdev_takes_along_is_told() -> None:
    assert Takes(addresses=True, neighbours=True).words == ("addresses", "neighbours")
    assert (Takes().anything, Takes(rules=True).anything) == (False, True)

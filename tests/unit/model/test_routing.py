"""A rule of a namespace, in words."""

from nri_rdma.model.network import RoutingRule
from nri_rdma.model.routing import KnownRule

RULE = RoutingRule(version=4, priority=5, table=7)


def test_what_is_not_understood_of_a_rule_is_told() -> None:
    assert str(KnownRule(rule=RULE)) == str(RULE)
    assert str(KnownRule(rule=RULE, foreign="goto, ipproto")) == f"{RULE} (goto, ipproto)"

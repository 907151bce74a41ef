"""Which devices a pool has, and which pods a rule is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.model.device import RdmaDevice
from nri_rdma.model.pool import Asker, Pool, Rule
from nri_rdma.model.request import Mode
from nri_rdma.model.selector import Selector
from tests.unit.model.hardware import nic


def pool(select: tuple[Selector, ...] = (), exclude: tuple[Selector, ...] = ()) -> Pool:
    return Pool(name="rails", modes=(Mode.EXCLUSIVE,), select=select, exclude=exclude)


FIRST, SECOND = Selector(device=("mlx5_0",)), Selector(device=("mlx5_1",))
MELLANOX = Selector(vendor=("15b3",))


@pytest.mark.parametrize(
    ("offer", "devices"),
    [
        (pool(), ["mlx5_0", "mlx5_1", "mlx5_2"]),
        (pool(select=(FIRST,)), ["mlx5_0"]),
        (pool(select=(FIRST, SECOND)), ["mlx5_0", "mlx5_1"]),
        (pool(exclude=(FIRST,)), ["mlx5_1", "mlx5_2"]),
        (pool(exclude=(FIRST, SECOND)), ["mlx5_2"]),
        (pool(select=(MELLANOX,), exclude=(SECOND,)), ["mlx5_0", "mlx5_2"]),
        (pool(select=(FIRST,), exclude=(FIRST,)), []),
        (pool(select=(FIRST,), exclude=(SECOND,)), ["mlx5_0"]),
        (pool(select=(Selector(vendor=("14e4",)),)), []),
    ],
    ids=["all", "one", "any of several", "but one", "but several", "select but", "both", "another", "none"],
)
def test_a_pool_has_what_any_selector_takes_and_none_excludes(offer: Pool, devices: list[str]) -> None:
    assert [device.name for device in map(nic, range(3)) if offer.has(device)] == devices


def away(device: RdmaDevice) -> RdmaDevice:
    """The device while its netdev is in another network namespace."""
    return replace(device, netdevs=())


def test_a_device_whose_netdev_is_away_is_excluded_by_a_netdevs_name_and_not_selected_by_it() -> None:
    by_netdev = (Selector(netdev=("eth0",)),)
    excluding, selecting = pool(exclude=by_netdev), pool(select=by_netdev)
    assert (excluding.has(nic(1)), excluding.has(away(nic(1)))) == (True, False)
    assert (selecting.has(nic(0)), selecting.has(away(nic(0)))) == (True, False)


ANYBODY = Asker()
CONCERNS = (
    ("namespaces", Rule(name="", where="", namespaces=("train-*", "x")), Asker(namespace="train-1"), ANYBODY),
    ("a whole namespace", Rule(name="", where="", namespaces=("x",)), Asker(namespace="x"), Asker(namespace="xy")),
    ("one character", Rule(name="", where="", namespaces=("x?",)), Asker(namespace="xy"), Asker(namespace="x")),
    ("handlers", Rule(name="", where="", runtime_handlers=("kata",)), Asker(runtime_handler="kata"), ANYBODY),
    ("the default handler", Rule(name="", where="", runtime_handlers=("",)), ANYBODY, Asker(runtime_handler="kata")),
    (
        "all labels",
        Rule(name="", where="", pod_labels=(("a", ("1", "2")), ("b", ("*",)))),
        Asker(labels=(("a", "2"), ("b", "x"), ("c", ""))),
        Asker(labels=(("a", "2"),)),
    ),
    ("a label's value", Rule(name="", where="", pod_labels=(("a", ("1",)),)), Asker(labels=(("a", "1"),)), ANYBODY),
)


@pytest.mark.parametrize(("rule", "meant", "other"), [case[1:] for case in CONCERNS], ids=[it[0] for it in CONCERNS])
def test_a_rule_concerns_whom_it_is_for(rule: Rule, meant: Asker, other: Asker) -> None:
    assert (rule.concerns(meant, "rails"), rule.concerns(other, "rails")) == (True, False)


def test_a_rule_concerns_its_pools() -> None:
    rule = Rule(name="", where="", pools=("rails",))
    assert (rule.concerns(ANYBODY, "rails"), rule.concerns(ANYBODY, "default")) == (True, False)


def test_a_rule_without_conditions_is_for_every_pod_and_every_pool() -> None:
    rule = Rule(name="", where="")
    assert rule.concerns(ANYBODY, "default")
    assert rule.concerns(Asker(namespace="x", runtime_handler="kata", labels=(("a", ""),), host_network=True), "rails")


@pytest.mark.parametrize("lacking", [{"namespace": "y"}, {"runtime_handler": "runc"}, {"labels": (("a", "2"),)}])
def test_a_rule_is_for_pods_that_fulfil_all_its_conditions(lacking: dict[str, object]) -> None:
    conditions = (("a", ("1",)),)
    rule = Rule(name="", where="", namespaces=("x",), runtime_handlers=("kata",), pod_labels=conditions, pools=("p",))
    asker = Asker(namespace="x", runtime_handler="kata", labels=(("a", "1"),))
    assert rule.concerns(asker, "p")
    assert not rule.concerns(replace(asker, **lacking), "p")  # type: ignore[arg-type]  # fields by name


def test_names_of_pods_are_compared_with_their_case_and_those_of_pools_without_patterns() -> None:
    assert not Rule(name="", where="", namespaces=("Train",)).concerns(Asker(namespace="train"), "rails")
    assert not Rule(name="", where="", pools=("rail*",)).concerns(ANYBODY, "rails")


def test_a_rule_is_named_with_its_place() -> None:
    assert str(Rule(name="team", where="rules[0]")) == "rule team (rules[0])"

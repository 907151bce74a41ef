"""Requests know whom they concern."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.request import LABEL, DeviceRequest, Scope, env_name


def test_a_scope_covers_every_container_by_default() -> None:
    assert Scope().covers("any")


def test_a_scope_leaves_out_containers_with_lists_of_their_own() -> None:
    assert not Scope(only=frozenset({"a"}), but=frozenset({"a"})).covers("a")


def test_a_container_more_or_less_changes_a_list_of_containers_and_nothing_that_is_for_all() -> None:
    named = DeviceRequest(name="", where="HERE", scope=Scope(only=frozenset({"a"}), but=frozenset({"b"})))
    more = named.covering("c", is_covered=True)
    assert more.scope == Scope(only=frozenset({"a", "c"}), but=frozenset({"b"}))
    assert more.covering("a", is_covered=False).scope == Scope(only=frozenset({"c"}), but=frozenset({"b"}))
    everybodys = replace(named, scope=Scope())
    assert everybodys.covering("c", is_covered=True) == everybodys.covering("c", is_covered=False) == everybodys


@given(st.from_regex(LABEL, fullmatch=True), st.from_regex(LABEL, fullmatch=True))
def test_different_labels_have_different_names_in_the_environment(one: str, other: str) -> None:
    assert (env_name(one) == env_name(other)) == (one == other)

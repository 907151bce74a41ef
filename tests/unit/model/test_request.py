"""Requests know whom they concern."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.request import LABEL, Scope, env_name


def test_a_scope_covers_every_container_by_default() -> None:
    assert Scope().covers("any")


def test_a_scope_leaves_out_containers_with_lists_of_their_own() -> None:
    assert not Scope(only=frozenset({"a"}), but=frozenset({"a"})).covers("a")


@given(st.from_regex(LABEL, fullmatch=True), st.from_regex(LABEL, fullmatch=True))
def test_different_labels_have_different_names_in_the_environment(one: str, other: str) -> None:
    assert (env_name(one) == env_name(other)) == (one == other)

"""Which sandboxes are of one pod, and how a pod is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.pod import Pod

POD = Pod(sandbox_id="s1", uid="u1", name="train-0", namespace="ml", netns_path="/run/netns/a", pid=7)

_WORDS = st.sampled_from(["", "a", "b"])
_PODS = st.builds(
    Pod, sandbox_id=_WORDS, uid=_WORDS, name=_WORDS, namespace=_WORDS, netns_path=_WORDS, pid=st.integers(0, 1)
)


def test_a_later_sandbox_is_of_the_same_pod() -> None:
    assert POD.is_same_pod(replace(POD, sandbox_id="s2", netns_path="/run/netns/b", pid=8))


@pytest.mark.parametrize(
    "other",
    [replace(POD, uid="u2"), replace(POD, name="train-1"), replace(POD, namespace="test")],
    ids=["uid", "name", "namespace"],
)
def test_another_uid_name_or_namespace_is_another_pod(other: Pod) -> None:
    assert not POD.is_same_pod(other)


def test_pods_without_a_uid_are_known_by_their_names() -> None:
    nameless = replace(POD, uid="")
    assert nameless.is_same_pod(replace(nameless, sandbox_id="s2"))
    assert not nameless.is_same_pod(replace(nameless, name="train-1"))
    assert not nameless.is_same_pod(POD)


@given(_PODS, _PODS, _PODS)
def test_to_be_of_one_pod_is_an_equivalence(one: Pod, other: Pod, third: Pod) -> None:
    assert one.is_same_pod(one)
    assert one.is_same_pod(other) == other.is_same_pod(one)
    assert one.is_same_pod(third) or not (one.is_same_pod(other) and other.is_same_pod(third))


def test_a_pod_is_named_as_kubectl_names_it() -> None:
    assert str(POD) == "ml/train-0"

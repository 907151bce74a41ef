"""A container's annotation tells its shares, whatever else is among its annotations."""

from nri_rdma.text.share_annotations import forged, given_guards, guarded_annotation, share_annotation, shares_in


def test_what_is_written_is_read() -> None:
    one = share_annotation("rdma/hca_a", ["a-2", "a-1"])
    two = share_annotation("rdma/hca_b", ["b-1"])
    assert one == ("shares.rdma.noderesource.dev/rdma_hca_a", "rdma/hca_a=a-1,a-2")
    told = dict([one, two, ("io.kubernetes.container.name", "main")])
    assert shares_in(told) == {("rdma/hca_a", "a-1"), ("rdma/hca_a", "a-2"), ("rdma/hca_b", "b-1")}


def test_other_annotations_tell_nothing() -> None:
    assert shares_in({"rdma.noderesource.dev/pod": "1", "shares": "rdma/hca=1"}) == frozenset()


def test_a_key_of_the_pods_own_that_looks_like_one_is_found() -> None:
    key, value = share_annotation("rdma/hca", ["a-1"])
    assert forged({"a": "b", key: value}) == key
    assert forged({"a": "b"}) == ""
    key, value = guarded_annotation("rdma/hca", "hcas")
    assert forged({key: value}) == key


def test_the_pools_whose_guard_was_given_are_told_beside_the_shares() -> None:
    told = dict([share_annotation("rdma/hca", ["a-1"]), guarded_annotation("rdma/hca", "hcas")])
    assert given_guards(told) == {"hcas"}
    assert shares_in(told) == {("rdma/hca", "a-1")}
    assert given_guards({"hcas": "hcas"}) == frozenset()

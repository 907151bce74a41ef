"""A container's annotation tells its shares, whatever else is among its annotations."""

from nri_rdma.text.shares import forged, share_annotation, shares_in


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

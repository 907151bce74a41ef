"""Since when the kubelet knows something, or does not."""

from __future__ import annotations

from nri_rdma.model.registration import Registration


def test_the_time_is_that_of_the_last_change() -> None:
    first = Registration(error="no kubelet", since=5.0)
    assert first.then("another reason", 6.0) == Registration(error="another reason", since=5.0)
    known = first.then("", 7.0)
    assert known == Registration(error="", since=7.0)
    assert known.then("", 8.0) == known
    assert known.then("gone", 9.0) == Registration(error="gone", since=9.0)

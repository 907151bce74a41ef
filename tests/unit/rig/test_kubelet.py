"""The fake kubelet counts calls as the real one does."""

from __future__ import annotations

from tests.rig.kubelet import BURST, RATE, _Bucket, fields, text, varint


def test_after_a_burst_a_call_is_allowed_whenever_a_token_has_come_back() -> None:
    now = [100.0]
    bucket = _Bucket(lambda: now[0])
    assert [bucket.take() for _ in range(int(BURST) + 1)] == [True] * int(BURST) + [False]
    now[0] += 1 / RATE
    assert [bucket.take(), bucket.take()] == [True, False]
    now[0] += 1000
    assert [bucket.take() for _ in range(int(BURST) + 1)] == [True] * int(BURST) + [False]


def test_numbers_and_texts_are_written_as_protobuf_has_them() -> None:
    assert varint(300) == b"\xac\x02"
    assert text(2, "testing") == b"\x12\x07testing"
    assert list(fields(text(1, "a") + text(15, "b" * 300))) == [(1, b"a"), (15, b"b" * 300)]

"""Requests of HTTP as they come: in any pieces, of any client, and never more than a bounded head of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.doors.metrics.http import MAX_HEAD, BadRequestError, PageAnswer, PageRequest, read_request, written

PROMETHEUS = (
    b"GET /metrics HTTP/1.1\r\nHost: 10.0.0.17:9178\r\nUser-Agent: Prometheus/3.5.0\r\n"
    b"Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4\r\n"
    b"Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n"
)


def refused(data: bytes) -> int:
    with pytest.raises(BadRequestError) as caught:
        read_request(data)
    answer = caught.value.answer
    assert answer.body.endswith(b"\n") and answer.body.count(b"\n") == 1
    return answer.status


@given(st.integers(min_value=0, max_value=len(PROMETHEUS) - 1))
def test_a_request_is_read_when_it_is_complete_and_not_before(length: int) -> None:
    assert read_request(PROMETHEUS[:length]) is None
    assert read_request(PROMETHEUS) == PageRequest(path="/metrics")


@pytest.mark.parametrize(
    ("data", "request_"),
    [
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", PageRequest(path="/healthz", is_head=True)),
        (b"GET /metrics?name[]=up HTTP/1.0\r\n\r\n", PageRequest(path="/metrics")),
        (b"GET / HTTP/1.1\n\n", PageRequest(path="/")),
        (b"GET /metrics HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n", PageRequest(path="/metrics")),
    ],
)
def test_what_clients_send_by_hand_is_read_too(data: bytes, request_: PageRequest) -> None:
    assert read_request(data) == request_


@pytest.mark.parametrize("method", ["POST", "CONNECT", "get", "BREW"])
def test_another_method_is_refused_and_the_right_ones_are_named(method: str) -> None:
    assert refused(f"{method} /metrics HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n".encode()) == 405
    assert b"\r\nAllow: GET, HEAD\r\n" in written(PageAnswer(status=405, body=b""))


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET  /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/2.0\r\n\r\n",
        b"GET http://h/metrics HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    assert refused(data) == 400


def test_a_head_without_end_is_refused_as_soon_as_it_is_too_long() -> None:
    assert read_request(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (MAX_HEAD - 27)) is None
    assert refused(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * MAX_HEAD) == 431
    assert refused(b"a" * MAX_HEAD) == 431


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for text in (data, data + b"\r\n\r\n", b"GET /" + data + b" HTTP/1.1\r\n\r\n"):
        try:
            read_request(text)
        except BadRequestError as error:
            assert error.answer.status in {400, 405}


def test_an_answer_says_how_long_it_is_and_one_to_head_has_no_body() -> None:
    answer = PageAnswer(body="ä\n".encode())
    whole = written(answer)
    head, _, body = whole.partition(b"\r\n\r\n")
    assert body == answer.body
    assert b"\r\nContent-Length: 3\r\n" in head and head.endswith(b"\r\nConnection: close")
    assert written(answer, is_head=True) == head + b"\r\n\r\n"

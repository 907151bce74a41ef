"""The part of HTTP/1.1 that two pages need: GET and HEAD, with one answer for each connection. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_HEAD: Final = 8 << 10
"""Maximum size of a request's first line and headers in bytes. Prometheus sends about 300."""
PLAIN: Final = "text/plain; charset=utf-8"
_METHODS: Final = ("GET", "HEAD")
_FIRST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (/[!-~]*) HTTP/1\.[0-9]")
_END = re.compile(rb"\r?\n\r?\n")
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A client's request. `path` has no query string."""

    path: str
    is_head: bool = False
    """Whether the method is HEAD, so that the answer has no body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAnswer:
    """The answer to a request: status, body and content type."""

    status: int = 200
    body: bytes
    content_type: str = PLAIN


class BadRequestError(Exception):
    """A request that cannot be served; `answer` is the error page for the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.answer = PageAnswer(status=status, body=f"{sentence}\n".encode())


def read_request(received: bytes | bytearray) -> PageRequest | None:
    """Parse the request in the bytes received so far; None while its headers are incomplete.

    The content of headers and body is ignored. Raises BadRequestError if the request is too long, malformed, or neither
    GET nor HEAD.
    """
    end = _END.search(received, 0, MAX_HEAD)
    if end is None:
        if len(received) >= MAX_HEAD:
            raise BadRequestError(431, f"the request is longer than {MAX_HEAD} bytes")
        return None
    first_line = bytes(received[: end.start()]).partition(b"\n")[0].removesuffix(b"\r")
    found = _FIRST_LINE.fullmatch(first_line)
    if found is None:
        raise BadRequestError(400, "this is not an HTTP/1.1 request with a path")
    method = found[1].decode()
    if method not in _METHODS:
        raise BadRequestError(405, f"only {' and '.join(_METHODS)} are served")
    return PageRequest(path=found[2].decode().partition("?")[0], is_head=method == "HEAD")


def written(answer: PageAnswer, *, is_head: bool = False) -> bytes:
    """Return the bytes of an answer. They announce that the connection is closed, which the caller must do."""
    headers = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if answer.status == 405:
        headers.append(f"Allow: {', '.join(_METHODS)}")
    head = "\r\n".join([*headers, "", ""]).encode()
    return head if is_head else head + answer.body

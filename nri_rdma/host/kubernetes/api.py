"""A client of the Kubernetes API server: JSON objects by their paths, and protobuf where every byte must be preserved.

Kubernetes' own library finds and renews the credentials. Every call blocks, for at most its time limit; the thread that
handles NRI events must not make a call. Answers are not trusted: their size, number of values and time are limited, to
protect the daemon's memory and its pods. The library is imported for the first call, which takes a quarter of a second.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any  # Any: JSON, and a library without types
from urllib.parse import urlencode

from nri_rdma.errors import ApiServerError, ErrorCode
from nri_rdma.host.kubernetes.timed import use_deadlines

CALL_S = 10.0
"""Time limit of a whole call in seconds, even if the answer arrives slowly."""
MOST, MOST_OF_LIST, MOST_OF_REFUSAL = 3 << 20, 8 << 20, 64 << 10
"""The largest size in bytes of an object (API servers accept no larger ones), of a list, and of the text of a
refusal."""
MOST_VALUES = 200_000
"""The largest number of values in an answer, which 5000 devices in resource slices have. It is limited because Python
needs 28 bytes for each byte of `[],[],`."""
JSON, PROTOBUF = "application/json", "application/vnd.kubernetes.protobuf"
_HINT = "nothing, it is tried again; see that the API server runs, and the credentials in the setting kubeconfig"
_STRANGE_HINT = "see what answers at the API server's address in the setting kubeconfig; it is tried again"
_DEEP_HINT = "see the object's parameters, and have them nest less deep"
RIGHTS_HINT = "run `helm upgrade`, or without the chart apply the output of `nri-rdma claims manifests`, again"
"""What to do if a right is missing. Applied over the chart's objects, the manifests would give the rights of its
daemons to a service account in another namespace."""


class ApiServer:
    """A client of the Kubernetes API server. Safe for use by several threads; the creator closes it.

    Every call raises ApiServerError if the server does not answer in time, refuses, or sends an invalid answer.
    """

    def __init__(self, kubeconfig: Path | None) -> None:
        """`kubeconfig` is the file with the address and the credentials; None: use the service account of the daemon's
        pod."""
        self._kubeconfig = kubeconfig
        self._lock = threading.Lock()
        self._client: Any = None

    def get(self, path: str, query: Mapping[str, str] | None = None, timeout_s: float = CALL_S) -> dict[str, Any]:
        """Return the object at a path of the API. Raises ApiServerError: its `status` is 404 if there is no such
        object."""
        return self._call("GET", path, query, None, timeout_s)

    def items(
        self, path: str, query: Mapping[str, str] | None = None, timeout_s: float = CALL_S
    ) -> list[dict[str, Any]]:
        """Return the objects of the collection at a path. Raises ApiServerError if the server does not answer, refuses,
        or sends no list."""
        found = self._call("GET", path, query, None, timeout_s, most=MOST_OF_LIST).get("items")
        if not isinstance(found, list) or not all(isinstance(it, dict) for it in found):
            raise _strange("the API server's answer is no list of objects", path)
        return found

    def create(self, path: str, made: Mapping[str, Any], timeout_s: float = CALL_S) -> dict[str, Any]:
        """Create the object `made` in the collection at a path, and return the object that the server created. Raises
        ApiServerError if the server does not answer or refuses."""
        return self._call("POST", path, None, made, timeout_s)

    def replace(self, path: str, changed: Mapping[str, Any], timeout_s: float = CALL_S) -> dict[str, Any]:
        """Replace the object at a path by `changed`, and return the object that the server stored. Raises
        ApiServerError if the server does not answer or refuses."""
        return self._call("PUT", path, None, changed, timeout_s)

    def merge(self, path: str, changes: Mapping[str, Any], timeout_s: float = CALL_S) -> dict[str, Any]:
        """Change the object at a path by a merge patch (RFC 7386), and return the new object. Raises ApiServerError if
        the server does not answer or refuses.

        Fields that the patch does not name keep their exact bytes. If the patch has `metadata.resourceVersion` and the
        object has changed since that version, the server refuses with a conflict.
        """
        return self._call("PATCH", path, None, changes, timeout_s)

    def get_bytes(self, path: str, timeout_s: float = CALL_S) -> bytes:
        """Return the object at a path in protobuf, with every byte preserved. Raises ApiServerError if the server does
        not answer or refuses."""
        return bytes(self._read(self._send("GET", path, {}, None, timeout_s, accept=PROTOBUF), path, MOST))

    def get_text(self, path: str, query: Mapping[str, str], timeout_s: float = CALL_S) -> str:
        """Return a text that is not an object, such as a container's log. Raises ApiServerError if the server does not
        answer or refuses."""
        answer = self._send("GET", path, query, None, timeout_s, accept="*/*")
        return self._read(answer, path, MOST).decode(errors="replace")

    def replace_bytes(self, path: str, changed: bytes, timeout_s: float = CALL_S) -> None:
        """Replace the object at a path by `changed`, an object encoded in protobuf. Raises ApiServerError if the server
        does not answer or refuses."""
        self._read(self._send("PUT", path, {}, changed, timeout_s), path, MOST)

    def delete(self, path: str, timeout_s: float = CALL_S) -> None:
        """Delete the object at a path; nothing happens if there is no such object. Raises ApiServerError if the server
        does not answer or refuses."""
        try:
            self._call("DELETE", path, None, None, timeout_s)
        except ApiServerError as error:
            if error.status != _GONE:
                raise

    def watch(self, path: str, query: Mapping[str, str], within_s: float) -> Iterator[dict[str, Any]]:
        """Yield the changes of the collection at a path as they come, for at most `within_s` seconds. Raises
        ApiServerError if the server refuses or the connection ends early."""
        asked = {**query, "watch": "true", "timeoutSeconds": str(max(1, int(within_s)))}
        answer = self._send("GET", path, asked, None, within_s + CALL_S)
        try:
            for line in _lines(answer.response.stream(_PIECE, decode_content=False)):
                yield _parsed(line, path)
        except Exception as error:
            raise self._unreachable("watching ended early", path, error) from error
        finally:
            answer.response.close()

    def close(self) -> None:
        """Close all connections. Closing twice does nothing."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.rest_client.pool_manager.clear()

    # -- below -------------------------------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        most: int = MOST,
    ) -> dict[str, Any]:
        answer = self._send(method, path, query or {}, body, timeout_s)
        try:
            return _parsed(self._read(answer, path, most), path)
        except ApiServerError as error:
            raise _alone(error) from None

    def _read(self, answer: Any, path: str, most: int) -> bytearray:
        try:
            data = _body(answer, most + 1)
        except Exception as error:
            raise self._unreachable("the API server's answer cannot be read", path, error) from error
        if len(data) > most:
            raise _strange(f"the API server's answer is larger than {most >> 20} MiB", path)
        return data

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | bytes | None,
        timeout_s: float,
        accept: str = JSON,
    ) -> Any:
        """Send a request and return the answer, whose body is still unread. If the credentials are refused, read them
        anew and try once more. Raises ApiServerError for an error status."""
        until = time.monotonic() + timeout_s
        answer = self._answer(method, path, query, body, until, accept)
        if answer.status == _UNAUTHORIZED:  # some credentials are read only once, and may have been renewed
            self.close()
            answer = self._answer(method, path, query, body, until, accept)
        if not _FIRST_GOOD <= answer.status < _FIRST_BAD:
            what = f"the API server answers {answer.status} to {method}"
            hint = f"{RIGHTS_HINT}; it is tried again" if answer.status == _FORBIDDEN else _HINT
            raise ApiServerError(what, where=path, hint=hint, status=answer.status, detail=_message(answer))
        return answer

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | bytes | None,
        until: float,
        accept: str,
    ) -> Any:
        """Send a request once and return the answer, whatever its status is. Raises ApiServerError if there is no
        answer before the time `until` of time.monotonic."""
        try:
            client = self._connected()
            kind = "application/merge-patch+json" if method == "PATCH" else JSON
            headers = {"Accept": accept, "Content-Type": PROTOBUF if isinstance(body, bytes) else kind}
            client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            url = f"{client.configuration.host}{path}{'?' if query else ''}{urlencode(query)}"
            sent = dict(body) if isinstance(body, Mapping) else body
            left_s = max(_LEAST_S, until - time.monotonic())  # 0 would mean no limit
            return client.rest_client.request(method, url, headers=headers, body=sent, _request_timeout=left_s)
        except ApiServerError:
            raise
        except Exception as error:
            if _is_about_tls(error):  # the library keeps the CA in a file in /tmp, which may have been removed
                self.close()
            raise self._unreachable("the API server does not answer", path, error) from error

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                try:
                    from kubernetes import client
                    from kubernetes.config import incluster_config, kube_config
                except ImportError as error:
                    raise _not_installed(error) from error

                library: Any = client
                configuration = library.Configuration()
                if self._kubeconfig is None:
                    found: Any = incluster_config
                    found.load_incluster_config(client_configuration=configuration)
                else:
                    found = kube_config
                    found.load_kube_config(
                        str(self._kubeconfig), client_configuration=configuration, persist_config=False
                    )
                configuration.retries = False
                made = library.ApiClient(configuration)
                use_deadlines(made.rest_client.pool_manager)
                self._client = made
            return self._client

    def _unreachable(self, what: str, path: str, error: Exception) -> ApiServerError:
        return ApiServerError(what, where=path, hint=_HINT, detail=f"{type(error).__name__}: {error}"[:300])


def _is_about_tls(error: Exception) -> bool:
    """Return whether the library's error is one of TLS, which the library tells in the text of `reason` only."""
    return str(getattr(error, "reason", "")).startswith("SSLError")


_FIRST_GOOD, _FIRST_BAD, _UNAUTHORIZED, _FORBIDDEN, _GONE = 200, 300, 401, 403, 404
_PIECE = 1 << 16
_LEAST_S = 0.001


def _body(answer: Any, most: int) -> bytearray:
    """Return the body of an answer. Reading stops once there are at least `most` bytes, and the connection is then
    closed.

    Compressed bodies are not decompressed: none is requested, and a small one could expand to a large one.
    """
    data = bytearray()
    while len(data) < most and (piece := answer.response.read(_PIECE, decode_content=False)):
        data += piece
    if len(data) >= most:
        answer.response.close()
    return data


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the non-empty lines of a stream. Raises ValueError if a line is larger than MOST."""
    line = bytearray()
    for piece in pieces:
        first, *others = piece.split(b"\n")
        line += first
        for other in others:
            if line:
                yield bytes(line)
            line = bytearray(other)
        if len(line) > MOST:
            raise ValueError(f"a line is larger than {MOST >> 20} MiB")


def _parsed(data: bytes | bytearray, path: str) -> dict[str, Any]:
    """Return the JSON object in the body of an answer. Raises ApiServerError if the body is not a JSON object or has
    too many values."""
    if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise _strange(f"the API server's answer has more than {MOST_VALUES} values", path)
    try:
        found = json.loads(data)
    except ValueError as error:
        raise _strange("the API server's answer cannot be read", path, f"{type(error).__name__}: {error}") from error
    except RecursionError as error:
        raise _strange("the API server's answer is nested too deep to be read", path, hint=_DEEP_HINT) from error
    if not isinstance(found, dict):
        raise _strange("the API server's answer is no object", path, f"it begins with {bytes(data[:40])!r}")
    return found


def _alone(error: ApiServerError) -> ApiServerError:
    """Return the error without its causes and traceback, which refer to the whole answer.

    A future keeps its error, and would otherwise keep the answer in memory until a garbage collection.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _strange(what: str, path: str, detail: str = "", hint: str = _STRANGE_HINT) -> ApiServerError:
    return ApiServerError(what, where=path, hint=hint, detail=detail[:300])


def _not_installed(error: ImportError) -> ApiServerError:
    what = f"the Python package {error.name or 'kubernetes'} is not installed"
    hint = "install it, or nri-rdma with its extra claims (docs/claims.md), and start the daemon again"
    return ApiServerError(what, where="needed by pools with door = claims", hint=hint, code=ErrorCode.INSTALL)


def _message(answer: Any) -> str:
    """Return the error message in the body of an answer with an error status, at most 300 characters."""
    try:
        data = _body(answer, MOST_OF_REFUSAL)
    except Exception as error:  # noqa: BLE001 - the body is incomplete, and the status says enough
        return f"{type(error).__name__}: {error}"[:300]
    try:
        return str(json.loads(data).get("message", ""))[:300]
    except (ValueError, AttributeError, RecursionError):  # a proxy may have answered
        return data[:300].decode(errors="replace")

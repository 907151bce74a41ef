"""A client of the API server: JSON objects by their paths, and protobuf where each byte counts.

Kubernetes' own library finds credentials and renews them. Every call blocks, for at most its time limit; nothing here
is for the thread of NRI's events. The library is imported with the first call, which takes a quarter of a second.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any  # Any: JSON, and a library without types
from urllib.parse import urlencode

from nri_rdma.errors import ApiServerError

CALL_S = 10.0
"""Time limit of a call; after it the call fails."""
JSON, PROTOBUF = "application/json", "application/vnd.kubernetes.protobuf"
_HINT = "nothing, it is tried again; see that the API server runs, and the credentials in the setting kubeconfig"
_RIGHTS_HINT = "apply the output of `nri-rdma claims manifests` again; it is tried again"


class ApiServer:
    """Safe for use by several threads. The creator closes it."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """`kubeconfig` None: the service account of the pod."""
        self._kubeconfig = kubeconfig
        self._lock = threading.Lock()
        self._client: Any = None

    def get(self, path: str, query: Mapping[str, str] | None = None, timeout_s: float = CALL_S) -> dict[str, Any]:
        """Return the object, or the list of objects, at a path. Raises ApiServerError."""
        return self._call("GET", path, query, None, timeout_s)

    def create(self, path: str, made: Mapping[str, Any], timeout_s: float = CALL_S) -> dict[str, Any]:
        """Create an object in the collection at a path, and return it. Raises ApiServerError."""
        return self._call("POST", path, None, made, timeout_s)

    def replace(self, path: str, changed: Mapping[str, Any], timeout_s: float = CALL_S) -> dict[str, Any]:
        """Replace the object at a path, and return it. Raises ApiServerError."""
        return self._call("PUT", path, None, changed, timeout_s)

    def merge(self, path: str, changes: Mapping[str, Any], timeout_s: float = CALL_S) -> dict[str, Any]:
        """Change the object at a path by a merge patch (RFC 7386), and return it; all that the patch does not name
        stays, byte by byte. With `metadata.resourceVersion` in it a newer object is a conflict. Raises
        ApiServerError."""
        return self._call("PATCH", path, None, changes, timeout_s)

    def get_bytes(self, path: str, timeout_s: float = CALL_S) -> bytes:
        """Return the object at a path in protobuf, which has each of its bytes. Raises ApiServerError."""
        return self._read(self._send("GET", path, {}, None, timeout_s, accept=PROTOBUF), path)

    def replace_bytes(self, path: str, changed: bytes, timeout_s: float = CALL_S) -> None:
        """Replace the object at a path by one in protobuf. Raises ApiServerError."""
        self._read(self._send("PUT", path, {}, changed, timeout_s), path)

    def delete(self, path: str, timeout_s: float = CALL_S) -> None:
        """Delete the object at a path; that it is gone is no error. Raises ApiServerError."""
        try:
            self._call("DELETE", path, None, None, timeout_s)
        except ApiServerError as error:
            if error.status != _GONE:
                raise

    def watch(self, path: str, query: Mapping[str, str], within_s: float) -> Iterator[dict[str, Any]]:
        """Yield the changes of the collection at a path, for at most so long. Raises ApiServerError."""
        asked = {**query, "watch": "true", "timeoutSeconds": str(max(1, int(within_s)))}
        answer = self._send("GET", path, asked, None, within_s + CALL_S)
        rest = b""
        try:
            for piece in answer.response.stream(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                yield from (json.loads(line) for line in lines if line)
        except Exception as error:
            raise self._unreachable("watching ended early", path, error) from error
        finally:
            answer.response.close()

    def close(self) -> None:
        """End all connections. Again is no error."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.rest_client.pool_manager.clear()

    # -- below -------------------------------------------------------------------------------------------------------

    def _call(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Mapping[str, Any] | None, timeout_s: float
    ) -> dict[str, Any]:
        answer = self._send(method, path, query or {}, body, timeout_s)
        data = self._read(answer, path)
        try:
            found: dict[str, Any] = json.loads(data)
        except ValueError as error:
            raise self._unreachable("the API server's answer cannot be read", path, error) from error
        return found

    def _read(self, answer: Any, path: str) -> bytes:
        try:
            data: bytes = answer.read()
        except Exception as error:
            raise self._unreachable("the API server's answer cannot be read", path, error) from error
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
        """Return the answer; its body is not read yet."""
        answer = self._answer(method, path, query, body, timeout_s, accept)
        if answer.status == _UNAUTHORIZED:  # the library reads some credentials once, and they may be renewed by now
            self.close()
            answer = self._answer(method, path, query, body, timeout_s, accept)
        if not _FIRST_GOOD <= answer.status < _FIRST_BAD:
            what = f"the API server answers {answer.status} to {method}"
            hint = _RIGHTS_HINT if answer.status == _FORBIDDEN else _HINT
            raise ApiServerError(what, where=path, hint=hint, status=answer.status, detail=_message(answer))
        return answer

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | bytes | None,
        timeout_s: float,
        accept: str,
    ) -> Any:
        """Return the answer, whatever it is."""
        try:
            client = self._connected()
            kind = "application/merge-patch+json" if method == "PATCH" else JSON
            headers = {"Accept": accept, "Content-Type": PROTOBUF if isinstance(body, bytes) else kind}
            client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            url = f"{client.configuration.host}{path}{'?' if query else ''}{urlencode(query)}"
            sent = dict(body) if isinstance(body, Mapping) else body
            return client.rest_client.request(method, url, headers=headers, body=sent, _request_timeout=timeout_s)
        except Exception as error:
            raise self._unreachable("the API server does not answer", path, error) from error

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                from kubernetes import client
                from kubernetes.config import incluster_config, kube_config

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
                self._client = library.ApiClient(configuration)
            return self._client

    def _unreachable(self, what: str, path: str, error: Exception) -> ApiServerError:
        return ApiServerError(what, where=path, hint=_HINT, detail=f"{type(error).__name__}: {error}"[:300])


_FIRST_GOOD, _FIRST_BAD, _UNAUTHORIZED, _FORBIDDEN, _GONE = 200, 300, 401, 403, 404


def _message(answer: Any) -> str:
    """Return the sentence in the API server's refusal."""
    try:
        data: bytes = answer.read()
    except Exception as error:  # noqa: BLE001 - it broke off; the status says enough
        return f"{type(error).__name__}: {error}"[:300]
    try:
        return str(json.loads(data).get("message", ""))[:300]
    except (ValueError, AttributeError):  # a proxy between may answer with anything
        return data[:300].decode(errors="replace")

"""Opens a client of the API server for a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nri_rdma.errors import ApiServerError, ErrorCode
from nri_rdma.host.kubernetes.api import ApiServer


@contextmanager
def api_server(kubeconfig: Path | None, hint: str) -> Iterator[ApiServer]:
    """Yield a client of the API server, and close it. `kubeconfig` is as for ApiServer.

    Errors of the API server that leave the `with` block say `hint` as the next step: unlike the daemon, a command does
    not try again.
    """
    api = ApiServer(kubeconfig)
    try:
        yield api
    except ApiServerError as error:
        if error.code is ErrorCode.API_SERVER:  # otherwise the library is not installed
            error.hint = hint
        raise
    finally:
        api.close()

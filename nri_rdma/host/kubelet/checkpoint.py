"""Reads the kubelet's checkpoint file of resource claims."""

from __future__ import annotations

from nri_rdma.errors import ErrorCode, KubeletError


def read_checkpoint(path: str) -> bytes:
    """Return the content of the kubelet's checkpoint file of resource claims; b"" if it does not exist. Raises
    KubeletError if it cannot be read.

    The kubelet replaces the file atomically. On a node that serves claims, the start of every pod waits for this
    function.
    """
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path would be made for every pod
            return file.readall()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise KubeletError(
            ErrorCode.KUBELET_STATE,
            f"the kubelet's checkpoint of claims cannot be read: {error.strerror}",
            where=path,
            hint="nothing to do if it is readable again; else see why the daemon cannot read it",
        ) from error

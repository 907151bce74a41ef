"""The kubelet's checkpoint is read as it is now."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.errors import ErrorCode, KubeletError
from nri_rdma.host.kubelet.checkpoint import read_checkpoint


def test_it_is_read_whole_and_what_is_not_there_has_nothing(tmp_path: Path) -> None:
    file = tmp_path / "dra_manager_state"
    assert read_checkpoint(str(file)) == b""
    file.write_bytes(b"x" * 300_000)
    assert read_checkpoint(str(file)) == b"x" * 300_000


def test_what_cannot_be_read_is_not_called_empty(tmp_path: Path) -> None:
    with pytest.raises(KubeletError, match="checkpoint of claims cannot be read: Is a directory") as caught:
        read_checkpoint(str(tmp_path))
    assert (caught.value.code, caught.value.where) == (ErrorCode.KUBELET_STATE, str(tmp_path))

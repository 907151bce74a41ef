"""Whether containerd reads CDI specs is what it says itself, or not known."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.host.containerd import cdi_setting
from nri_rdma.host.containerd.cdi_setting import reads_cdi_specs
from nri_rdma.host.containerd.containerd_api import ContainerdError
from tests.fakes.containerd import FakeContainerd, Mode


@pytest.fixture
def containerd() -> Iterator[FakeContainerd]:
    with FakeContainerd() as serving:
        yield serving


@pytest.mark.parametrize(
    ("told", "reads"),
    [
        ('{"containerd": {}, "enableCDI": true, "cdiSpecDirs": ["/etc/cdi"]}', True),
        ('{"enableCDI": false}', False),
        ('{"containerd": {}, "cdiSpecDirs": ["/etc/cdi"]}', True),  # containerd 2.4
        ('{"containerd": {}}', None),
        ('{"enableCDI": "false"}', None),
        ("[]", None),
        ("{", None),
        (None, None),
    ],
)
def test_it_is_asked_in_detail_and_believed(containerd: FakeContainerd, told: str | None, reads: bool | None) -> None:
    containerd.configuration = told
    assert reads_cdi_specs(containerd.socket) is reads
    assert containerd.calls == [("RuntimeService/Status", "0801")]


@pytest.mark.parametrize("mode", [Mode.FAILS, Mode.HANGS])
def test_a_containerd_that_does_not_answer_may_do_so_later(
    containerd: FakeContainerd, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdi_setting, "ASK_S", 0.2)
    containerd.mode = mode
    with pytest.raises(ContainerdError, match=r"runtime\.v1\.RuntimeService/Status: "):
        reads_cdi_specs(containerd.socket)


def test_an_answer_that_is_none_leaves_it_unknown(containerd: FakeContainerd) -> None:
    containerd.mode = Mode.TALKS_NONSENSE
    assert reads_cdi_specs(containerd.socket) is None


def test_where_nobody_listens_it_is_not_known(tmp_path: Path) -> None:
    assert reads_cdi_specs(None) is None
    assert reads_cdi_specs(tmp_path / "nothing.sock") is None
    left = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    assert reads_cdi_specs(left) is None

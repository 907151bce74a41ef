"""What is removed of a node, and what is not."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.commands.leave import node as leaving
from nri_rdma.config.settings import Settings
from nri_rdma.errors import ErrorCode, StateError

OURS = ("rdma.noderesource.dev-claim-1234.json", "shares.rdma.noderesource.dev-pool.json")
OTHERS = ("rdma.noderesource.dev-nic.json", "nvidia.com-gpu.yaml", "rdma.noderesource.dev-claim.txt")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A node on which a daemon has ended."""
    cdi, plugins, state = (tmp_path / name for name in ("cdi", "plugins", "state"))
    for folder in (cdi, plugins / "rdma.noderesource.dev", plugins / "other.example", state / "journal"):
        folder.mkdir(parents=True)
    for name in (*OURS, *OTHERS):
        (cdi / name).write_text("{}")
    (plugins / "rdma.noderesource.dev/dra.sock").touch()
    (state / "guard.json").write_text("{}")
    return Settings(
        state_dir=state,
        cdi_dirs=(tmp_path / "etc", cdi),
        kubelet_plugins_dir=plugins,
        nri_socket=tmp_path / "nri/nri.sock",
    )


def test_what_daemons_wrote_goes_and_what_others_wrote_stays(settings: Settings, tmp_path: Path) -> None:
    told = list(leaving.leave_node(settings, None))
    left = sorted(str(it.relative_to(tmp_path)) for it in tmp_path.rglob("*") if not it.is_dir())
    assert left == sorted(f"cdi/{name}" for name in OTHERS)
    assert not (tmp_path / "plugins/rdma.noderesource.dev").exists()
    assert (tmp_path / "plugins/other.example").is_dir()
    assert all(any(name in line for line in told) for name in OURS)


def test_again_is_no_error(settings: Settings) -> None:
    list(leaving.leave_node(settings, None))
    assert len(list(leaving.leave_node(settings, None))) <= 2  # the locks that it took itself


def test_a_folder_that_is_not_a_daemons_state_is_left_as_it_is(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "wrong/other-program").mkdir(parents=True)
    with pytest.raises(StateError, match="no state directory of nri-rdma: it has no journal, but other-program"):
        list(leaving.leave_node(replace(settings, state_dir=tmp_path / "wrong"), None))
    assert (tmp_path / "wrong/other-program").exists()
    assert (settings.cdi_dirs[-1] / OURS[0]).exists()


def test_a_record_that_cannot_be_read_refuses(settings: Settings) -> None:
    (settings.state_dir / "journal/s1.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(StateError) as refused:
            list(leaving.leave_node(settings, None))
        assert refused.value.code is ErrorCode.STATE_UNREADABLE
    assert (settings.cdi_dirs[-1] / OURS[0]).exists()


def test_beside_a_daemon_nothing_is_removed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "DAEMON_ENDS_S", 0.05)
    fd = os.open(settings.state_dir / "lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(StateError) as refused:
            list(leaving.leave_node(settings, None))
    finally:
        os.close(fd)
    assert refused.value.code is ErrorCode.STATE_LOCKED
    assert (settings.cdi_dirs[-1] / OURS[0]).exists()

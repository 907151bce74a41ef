"""A daemon's device plugins: the guard comes with the shares where the host has its hook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.device_plugins import make_device_plugins
from nri_rdma.decide.policy import policy_of
from nri_rdma.engine.shares import ShareBook
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.unit.commands.cli.daemon import InsideDaemon
from tests.unit.doors.deviceplugin.pools import RESOURCE, pool

SPEC = "shares.rdma.noderesource.dev-pool.json"


@contextmanager
def plugins(inside: InsideDaemon, folder: Path, hook: Path | None) -> Iterator[FakeDeviceManager]:
    """The plugins of a daemon that has these settings, registered with a kubelet."""
    settings = Settings(
        device_plugin_dir=folder / "plugins",
        cdi_dirs=(folder / "etc", folder / "cdi"),
        guard_hook=hook,
        pools=(pool(),),
        state_dir=folder / "state",
    )
    inside.engine.placer.evidence.kubelet.shares = ShareBook(settings.pools)
    inside.engine.placer.offering.policy = policy_of(settings.pools, (), allow_default_pool=False)
    workers, listeners = Workers(), Listeners()
    with FakeDeviceManager(settings.device_plugin_dir) as manager:
        made = make_device_plugins(settings, inside.engine, workers, listeners)
        made.open_later()
        wait_until(lambda: RESOURCE in manager.plugins, "the registration")
        try:
            yield manager
        finally:
            workers.close(5)
            made.close()
            listeners.close()


def test_a_container_with_a_share_gets_the_guard_of_this_daemon(tmp_path: Path, eight: Path) -> None:
    hook = tmp_path / "nri-rdma-hook"
    hook.write_text("#!/bin/sh\n")
    with InsideDaemon(tmp_path, eight) as inside, plugins(inside, tmp_path, hook) as manager:
        (answer,) = manager.allocate(RESOURCE, ("hcas-00",))
        assert [content for number, content in answer if number == 5] == [
            b"\x0a\x26shares.rdma.noderesource.dev/pool=hcas"
        ]
        (device,) = json.loads((tmp_path / "cdi" / SPEC).read_text())["devices"]
        (guard,) = device["containerEdits"]["hooks"]
        assert guard["path"] == str(hook)
        assert guard["args"][2:4] == ["--control-socket", str(tmp_path / "state/control.sock")]
        assert inside.engine.placer.evidence.kubelet.shares.is_guarded
    assert (tmp_path / "cdi" / SPEC).exists()


@pytest.mark.parametrize("hook", [None, "nothing-there"])
def test_without_the_hook_shares_come_without_the_guard_and_the_log_says_so(
    tmp_path: Path, eight: Path, hook: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        InsideDaemon(tmp_path, eight) as inside,
        plugins(inside, tmp_path, tmp_path / hook if hook else None) as manager,
    ):
        (answer,) = manager.allocate(RESOURCE, ("hcas-00",))
        assert [number for number, _content in answer] == [4]
        assert not (tmp_path / "cdi").exists()
    assert any(it.message.startswith("containers with shares have no guard") for it in caplog.records)

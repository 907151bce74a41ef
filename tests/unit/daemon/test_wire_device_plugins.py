"""A daemon's device plugins: the guard comes with the shares where the host has its hook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.wire_device_plugins import hook_options, make_device_plugins
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.deviceplugin.plugins import DevicePlugins
from nri_rdma.engine.shares import Guarding, ShareBook
from nri_rdma.model.pool import Pool
from nri_rdma.model.selector import Selector
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.fakes.containerd import FakeContainerd, Mode
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.unit.doors.deviceplugin.pools import NIC, RESOURCE, pool, pool_of_devices
from tests.unit.rigs.inside_daemon import InsideDaemon

GUARD = "rdma.noderesource.dev/guard"
SPEC = "shares.rdma.noderesource.dev-pool.json"


@contextmanager
def plugins(
    inside: InsideDaemon,
    folder: Path,
    hook: Path | None,
    *pools: Pool,
    runtime: str = "cri-o",
    socket: Path | None = None,
    guard_resource: str = "",
) -> Iterator[tuple[FakeDeviceManager, DevicePlugins]]:
    """The plugins of a daemon that has these settings, registered with a kubelet."""
    settings = Settings(
        device_plugin_dir=folder / "plugins",
        cdi_dirs=(folder / "etc", folder / "cdi"),
        guard_hook=hook,
        pools=pools or (() if guard_resource else (pool(),)),
        guard_resource=guard_resource,
        containerd_socket=socket,
        state_dir=folder / "state",
    )
    shares = ShareBook(settings.pools, guard_resource=guard_resource)
    inside.engine.kubelet.shares = shares
    inside.engine.offering.policy = policy_of(settings.pools, (), allow_default_pool=False)
    workers, listeners = Workers(), Listeners()
    with FakeDeviceManager(settings.device_plugin_dir) as manager:
        made = make_device_plugins(settings, inside.engine, workers, listeners, lambda: runtime, inside.spans)
        made.open_later()
        wait_until(lambda: len(manager.plugins) == len(shares.served), "the registration")
        try:
            yield manager, made
        finally:
            workers.close(5)
            made.close()
            listeners.close()


def test_a_container_with_a_share_gets_the_guard_of_this_daemon(tmp_path: Path, eight: Path) -> None:
    hook = tmp_path / "nri-rdma-hook"
    hook.write_text("#!/bin/sh\n")
    with InsideDaemon(tmp_path, eight) as inside, plugins(inside, tmp_path, hook) as (manager, _):
        (answer,) = manager.allocate(RESOURCE, ("hcas-00",))
        assert [content for number, content in answer if number == 5] == [
            b"\x0a\x26shares.rdma.noderesource.dev/pool=hcas"
        ]
        (device,) = json.loads((tmp_path / "cdi" / SPEC).read_text())["devices"]
        (guard,) = device["containerEdits"]["hooks"]
        assert guard["path"] == str(hook)
        assert guard["args"][2:4] == ["--control-socket", str(tmp_path / "state/control.sock")]
        assert inside.engine.kubelet.shares.is_guarded
    assert (tmp_path / "cdi" / SPEC).exists()


def test_a_container_with_the_guard_resource_gets_the_guard_and_nothing_else(tmp_path: Path, eight: Path) -> None:
    hook = tmp_path / "nri-rdma-hook"
    hook.write_text("#!/bin/sh\n")
    with (
        InsideDaemon(tmp_path, eight) as inside,
        plugins(inside, tmp_path, hook, guard_resource=GUARD) as (manager, _),
    ):
        wait_until(lambda: len(manager.plugins[GUARD].devices) == 1024, "the list")
        wait_until(lambda: {*manager.plugins[GUARD].devices.values()} == {"Healthy"}, "the guard")
        one, other = manager.allocate(GUARD, ("0-guard-0000",), ("0-guard-0001", "0-guard-0002"))
        assert one == other == [(5, b"\x0a\x29shares.rdma.noderesource.dev/pool=0-guard")]
        assert not inside.engine.kubelet.shares.is_pending
        (device,) = json.loads((tmp_path / "cdi" / SPEC).read_text())["devices"]
        (guard,) = device["containerEdits"]["hooks"]
        assert guard["args"][-2:] == ["--resource", GUARD]


@pytest.mark.parametrize("runtime", ["cri-o", "containerd"])
def test_a_guard_resource_that_would_guard_nothing_is_not_given(
    tmp_path: Path, eight: Path, containerd: FakeContainerd, runtime: str, caplog: pytest.LogCaptureFixture
) -> None:
    hook = tmp_path / "nri-rdma-hook"
    if runtime == "containerd":
        hook.write_text("#!/bin/sh\n")
        containerd.configuration = '{"enableCDI": false}'
    with (
        InsideDaemon(tmp_path, eight) as inside,
        plugins(inside, tmp_path, hook, guard_resource=GUARD, runtime=runtime, socket=containerd.socket) as (
            manager,
            _,
        ),
    ):
        wait_until(lambda: len(manager.plugins[GUARD].devices) == 1024, "the list")
        assert set(manager.plugins[GUARD].devices.values()) == {"Unhealthy"}
    (told,) = (it for it in caplog.records if it.message == "the guard resource is not given")
    assert vars(told)["why"] == str(Guarding.NO_CDI if runtime == "containerd" else Guarding.NO_HOOK)


@pytest.mark.parametrize("hook", [None, "nothing-there"])
def test_without_the_hook_shares_come_without_the_guard_and_the_log_says_so(
    tmp_path: Path, eight: Path, hook: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        InsideDaemon(tmp_path, eight) as inside,
        plugins(inside, tmp_path, tmp_path / hook if hook else None) as (manager, _),
    ):
        (answer,) = manager.allocate(RESOURCE, ("hcas-00",))
        assert [number for number, _content in answer] == [4]
        assert not (tmp_path / "cdi").exists()
    assert any(it.message.startswith("containers with shares have no guard") for it in caplog.records)


def test_the_guard_is_told_what_it_would_not_take_by_itself() -> None:
    assert [*hook_options(Settings())] == []
    assert [*hook_options(Settings(state_dir=Path("/s")))] == ["--control-socket", "/s/control.sock"]
    assert [*hook_options(Settings(annotation_prefix="a.example"))] == ["--annotation-prefix", "a.example"]
    elsewhere = Settings(kubelet_plugins_dir=Path("/data/kubelet/plugins"))
    assert [*hook_options(elsewhere)] == ["--kubelet-checkpoint", "/data/kubelet/dra_manager_state"]


@pytest.fixture
def containerd() -> Iterator[FakeContainerd]:
    with FakeContainerd() as serving:
        yield serving


def numbers(manager: FakeDeviceManager, resource: str, share: str) -> list[int]:
    """The fields of the answer to Allocate: 3 device nodes, 4 annotations (two with the guard), 5 CDI devices."""
    (answer,) = manager.allocate(resource, (share,))
    return [number for number, _content in answer]


def test_where_containerd_reads_no_cdi_specs_devices_come_with_their_nodes_and_shares_with_the_annotation_alone(
    tmp_path: Path, eight: Path, containerd: FakeContainerd
) -> None:
    hook = tmp_path / "nri-rdma-hook"
    hook.write_text("#!/bin/sh\n")
    containerd.configuration = '{"enableCDI": false}'
    two = (
        replace(pool(), select=(Selector(numa_node=(0,)),)),
        replace(pool_of_devices(), select=(Selector(numa_node=(1,)),)),
    )
    with (
        InsideDaemon(tmp_path, eight) as inside,
        plugins(inside, tmp_path, hook, *two, runtime="containerd", socket=containerd.socket) as (manager, made),
    ):
        shares = inside.engine.kubelet.shares
        assert shares.guarding is Guarding.NO_CDI
        device = next(it for it in manager.plugins[NIC].devices)
        assert numbers(manager, NIC, device) == [3, 3, 4]
        assert numbers(manager, RESOURCE, "hcas-00") == [4]
        assert not (tmp_path / "cdi").exists()
        # The runtime is restarted with another configuration, and connects again.
        containerd.configuration = '{"enableCDI": true}'
        made.open_later()
        wait_until(lambda: numbers(manager, NIC, device) == [4, 4, 5], "the guard")
        assert numbers(manager, RESOURCE, "hcas-00") == [4, 4, 5]
        assert shares.is_guarded
        assert (tmp_path / "cdi" / SPEC).exists()


def test_another_runtime_is_not_judged_by_the_containerd_beside_it(
    tmp_path: Path, eight: Path, containerd: FakeContainerd
) -> None:
    hook = tmp_path / "nri-rdma-hook"
    hook.write_text("#!/bin/sh\n")
    containerd.configuration = '{"enableCDI": false}'
    with (
        InsideDaemon(tmp_path, eight) as inside,
        plugins(inside, tmp_path, hook, runtime="cri-o", socket=containerd.socket) as (manager, _),
    ):
        assert numbers(manager, RESOURCE, "hcas-00") == [4, 4, 5]
        assert containerd.calls == []


def test_nothing_is_served_before_containerd_has_said_whether_it_reads_cdi_specs(
    tmp_path: Path, eight: Path, containerd: FakeContainerd, caplog: pytest.LogCaptureFixture
) -> None:
    hook = tmp_path / "nri-rdma-hook"
    hook.write_text("#!/bin/sh\n")
    containerd.mode = Mode.FAILS

    def answer_the_second(method: str) -> None:
        if containerd.calls.count((method, "0801")) == 2:
            containerd.mode = Mode.ANSWERS

    containerd.before = answer_the_second
    with (
        InsideDaemon(tmp_path, eight) as inside,
        plugins(inside, tmp_path, hook, runtime="containerd", socket=containerd.socket) as (manager, _),
    ):
        assert numbers(manager, RESOURCE, "hcas-00") == [4, 4, 5]
        assert len(manager.registrations) == 1
    (told,) = (it for it in caplog.records if it.message == "a resource is not served")
    assert "containerd does not say whether it reads CDI specs" in vars(told)["error"]

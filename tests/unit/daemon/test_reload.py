"""Another configuration for a running daemon: all of it or nothing, and never anything for the pods that are there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any  # Any: values of settings

import pytest

from nri_rdma.config.settings import Document, Loaded, Memlock, Settings, load
from nri_rdma.daemon.reload import RELOADABLE, contested_words, refuse_fixed
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.errors import NriRdmaError, SettingError
from nri_rdma.model.pool import Asker, Pool, PoolDoor
from nri_rdma.model.request import Mode
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.rigs.inside_daemon import InsideDaemon

ONE = {"rdma.noderesource.dev": "1"}
RAILS = {"rdma.noderesource.dev": "rails"}
POOLS = """
[pools.rails]
select = { device = ["mlx5_2", "mlx5_3"] }
modes = ["exclusive"]
"""


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def reload_with(inside: InsideDaemon, text: str) -> None:
    """SIGHUP, when the file holds this."""
    now = load({}, {}, Document(name="FILE", text=text)).settings
    kept = {item.name: getattr(inside.settings, item.name) for item in fields(Settings) if item.name not in RELOADABLE}
    inside.settings_now = replace(now, **kept)
    inside.reloader.run()


def refusal_of(
    inside: InsideDaemon, name: str, annotations: dict[str, str], asker: Asker | None = None
) -> NriRdmaError:
    with pytest.raises(NriRdmaError) as caught:
        inside.start_pod(name, annotations, asker)
    return caught.value


def test_new_pools_are_for_pods_that_come_and_what_pods_have_stays_theirs(daemon: InsideDaemon) -> None:
    first = daemon.start_pod("first", ONE)
    reload_with(daemon, POOLS)
    assert daemon.reloader.error == ""
    assert daemon.edits(first, ONE, "a").char_devices
    assert "POOL-UNKNOWN" in str(refusal_of(daemon, "late", ONE))
    daemon.start_pod("rails", RAILS)
    assert [device.name for device in daemon.node.devices if device.id in daemon.reservations.taken()] == [
        "mlx5_0",
        "mlx5_2",
    ]
    daemon.stop_pod(first)
    assert len(daemon.reservations.taken()) == 1


def test_handlers_that_have_a_kernel_of_their_own_change(daemon: InsideDaemon) -> None:
    asker = Asker(namespace="default", runtime_handler="secure")
    reload_with(daemon, 'allow_default_pool = true\nsandboxed_handlers = ["sec*"]')
    assert "POLICY-HANDLER" in str(refusal_of(daemon, "early", ONE, asker))
    reload_with(daemon, "allow_default_pool = true")
    daemon.start_pod("late", ONE, asker)
    assert len(daemon.reservations.taken()) == 1


def test_the_log_level_changes(daemon: InsideDaemon) -> None:
    logging.getLogger().setLevel(logging.INFO)
    reload_with(daemon, 'log_level = "debug"')
    assert logging.getLogger().level == logging.DEBUG


OTHER_VALUES: dict[str, Any] = {
    "tracing": False,
    "memlock": Memlock(),
    "plugin_index": "10",
    "log_format": "json",
    "control_socket": Path("/other"),
}


def test_what_needs_a_start_is_refused_by_its_name_and_everything_with_it(daemon: InsideDaemon) -> None:
    reload_with(daemon, POOLS)
    before = daemon.settings_now
    for name in sorted({item.name for item in fields(Settings)} - RELOADABLE):
        other = OTHER_VALUES.get(name, Path("/other") if isinstance(getattr(daemon.settings, name), Path) else "other")
        assert other != getattr(daemon.settings, name)
        daemon.settings_now = replace(before, pools=(), **{name: other})
        daemon.reloader.run()
        assert f"SETTING: {name} cannot change while the daemon runs" in daemon.reloader.error
        assert list(daemon.engine.offering.policy.pools) == ["rails"]


def test_all_that_needs_a_start_is_named_at_once() -> None:
    with pytest.raises(SettingError, match="nri_socket, state_dir cannot change"):
        refuse_fixed(Settings(), Settings(state_dir=Path("/a"), nri_socket=Path("/b"), log_level="debug"))


@pytest.mark.parametrize("door", [PoolDoor.RESOURCE, PoolDoor.CLAIMS])
def test_pools_whose_devices_the_kubelet_or_the_scheduler_counts_need_a_start(door: PoolDoor) -> None:
    """Their device plugins and ResourceSlices are made at the start."""
    before = Pool(name="nics", modes=(Mode.SHARED,), door=door)
    kept = Pool(name="rails", modes=(Mode.SHARED,))
    for after in ((), (before, replace(before, name="other")), (replace(before, modes=(Mode.EXCLUSIVE,)),)):
        with pytest.raises(SettingError, match=f"pools with door = {door} cannot change while the daemon runs"):
            refuse_fixed(Settings(pools=(before, kept)), Settings(pools=(*after, kept)))
    refuse_fixed(Settings(pools=(before, kept)), Settings(pools=(replace(kept, modes=(Mode.EXCLUSIVE,)), before)))


def test_pools_that_contest_a_device_are_refused(daemon: InsideDaemon) -> None:
    reload_with(daemon, f'{POOLS}[pools.other]\nmodes = ["shared"]\nselect = {{ device = ["mlx5_3", "mlx5_4"] }}\n')
    assert "rails and other both select mlx5_3" in daemon.reloader.error
    assert list(daemon.engine.offering.policy.pools) == ["default"]


def test_without_contested_devices_there_are_no_words(daemon: InsideDaemon) -> None:
    assert contested_words(daemon.engine.offering.policy, daemon.node) == ""


def test_log_and_status_say_why_until_a_configuration_is_taken(
    daemon: InsideDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.settings_now = replace(daemon.settings, plugin_index="10")
    daemon.reloader.run()
    assert "configuration refused, the old one goes on" in caplog.messages
    told = nri_rdma("status", "--state-dir", daemon.settings.state_dir, columns=200).stdout
    assert (
        "Settings     WARNING, as before: nri-rdma: SETTING: plugin_index cannot change while the daemon runs." in told
    )
    reload_with(daemon, POOLS)
    assert ask_status(daemon.settings.control_path)["reload_error"] == ""


# What is read again


def loaded(tmp_path: Path, text: str = POOLS) -> tuple[Loaded, Path]:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load({"log_format": "json"}, {"NRI_RDMA_TRACING": "no"}, Document.read(path)), path


def test_flags_and_environment_still_come_before_the_file(tmp_path: Path) -> None:
    first, path = loaded(tmp_path)
    path.write_text('log_format = "text"\ntracing = true\nlog_level = "debug"')
    again = first.again()
    assert (again.log_format, again.tracing, again.log_level, again.pools) == ("json", False, "debug", ())


def test_a_file_that_is_gone_is_refused_and_offers_not_what_the_default_does(tmp_path: Path) -> None:
    first, path = loaded(tmp_path)
    path.unlink()
    with pytest.raises(SettingError, match="there is no such configuration file"):
        first.again()


def test_what_the_runtime_sent_stays(tmp_path: Path) -> None:
    first = load({}, {}, Document.sent_or_read(POOLS, tmp_path / "other.toml"))
    assert first.again() == first.settings
    assert first.settings.pools


def test_a_bad_file_is_refused(tmp_path: Path, daemon: InsideDaemon) -> None:
    first, path = loaded(tmp_path)
    path.write_text(POOLS + "modes = 1")
    daemon.reloader._read = first.again
    daemon.reloader.run()
    assert str(path) in daemon.reloader.error
    assert list(daemon.engine.offering.policy.pools) == ["default"]


def test_the_first_pool_of_claims_needs_a_new_start(daemon: InsideDaemon) -> None:
    """There is no driver that the kubelet could ask."""
    reload_with(daemon, f'{POOLS}door = "claims"\n')
    assert "pools with door = claims cannot change while the daemon runs" in daemon.reloader.error
    assert not daemon.reloader.has_taken

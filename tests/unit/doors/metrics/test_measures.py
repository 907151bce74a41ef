"""What is measured is what the daemon's status says of the same pods."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nri_rdma.config.settings import Document, load
from nri_rdma.decide.placement import Holding
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.metrics.declared import METRICS, Measured
from nri_rdma.doors.metrics.measures import MetricsSource, measured_now
from nri_rdma.engine.shares import Guarding
from nri_rdma.engine.view import view_of
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.driver import DriverView, PreparedClaims, Published
from nri_rdma.model.pool import GUARD_POOL
from nri_rdma.model.registration import Registration
from nri_rdma.model.request import Mode
from nri_rdma.observe.durations import Tally
from nri_rdma.observe.export import ExportCounts
from tests.rig.deadline import wait_until
from tests.unit.attach.sandbox_life import take_name
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.inside_daemon import InsideDaemon

PREFIX = "rdma.noderesource.dev"
ALL = {it.name for it in METRICS}


def source_of(daemon: InsideDaemon) -> MetricsSource:
    return MetricsSource(
        tally=Tally(),
        view=partial(view_of, daemon.engine),
        health=str,
        reload_error=daemon.facts.reload_error,
        driver=daemon.facts.driver,
        traces=daemon.facts.traces,
    )


def values(measured: Measured, name: str) -> dict[str, object]:
    """Those that are not 0, by their labels."""
    return {",".join(labels): value for labels, value in measured[name].items() if value}


@pytest.mark.parametrize("is_with_driver", [False, True])
def test_everything_that_is_measured_is_declared_with_its_labels(daemon: InsideDaemon, is_with_driver: bool) -> None:
    labels = {it.name: len(it.labels) for it in METRICS}
    if is_with_driver:
        daemon.driver = DriverView(
            name="d",
            registration=Registration(error="", since=0.0),
            published=Published(devices=8, slices=1),
            claims=PreparedClaims(attached=2, waiting=1),
        )
        daemon.export_counts = ExportCounts(waiting=0, exported=7, dropped=1, failed=2, error="")
    measured = measured_now(source_of(daemon))
    driver = {"nri_rdma_published_devices", "nri_rdma_publishing_failing", "nri_rdma_claims"}
    expected = ALL if is_with_driver else ALL - driver
    assert expected - measured.keys() == set(), "measure these in nri_rdma/doors/metrics/measures.py"
    assert measured.keys() - expected == set(), "declare these in nri_rdma/doors/metrics/declared.py"
    assert [name for name, rows in measured.items() if {len(it) for it in rows} - {labels[name]}] == []
    if is_with_driver:
        assert values(measured, "nri_rdma_claims") == {"attached": 2, "waiting": 1}
        assert values(measured, "nri_rdma_published_devices") == {"": 8}
        assert values(measured, "nri_rdma_publishing_failing") == {}
        assert values(measured, "nri_rdma_spans_total") == {"exported": 7, "dropped": 1, "failed": 2}


def test_the_page_of_metrics_has_every_value_of_a_label(daemon: InsideDaemon) -> None:
    page = (Path(__file__).resolve().parents[4] / "docs/metrics.md").read_text()
    daemon.driver = DriverView(
        name="d", registration=Registration(error="", since=0.0), published=Published(), claims=PreparedClaims()
    )
    daemon.export_counts = ExportCounts(waiting=0, exported=0, dropped=0, failed=0, error="")
    labels = {it.name: it.labels for it in METRICS}
    told = {
        (label, str(value))
        for name, rows in measured_now(source_of(daemon)).items()
        for values_ in rows
        for label, value in zip(labels[name], values_, strict=True)
        if label in {"outcome", "method", "state"}
    }
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    assert len(told) > 20
    assert [(label, value) for label, value in sorted(told) if f"`{value}`" not in rows[label]] == [], (
        "docs/metrics.md: write these values into the rows of their labels"
    )


def test_devices_and_pods_are_those_of_status(daemon: InsideDaemon) -> None:
    one = daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
    daemon.start_pod("both", {PREFIX: "[{match: {device: mlx5_3}, mode: shared}, {match: {device: mlx5_4}}]"})
    daemon.start_pod("also", {PREFIX: "[{match: {device: mlx5_3}, mode: shared}]"})
    measured, status = measured_now(source_of(daemon)), ask_status(daemon.settings.control_path)
    assert values(measured, "nri_rdma_devices") == {"in_pods": 3, "free": 5}
    assert sum(bool(it["holders"]) for it in status["devices"]) == 3
    assert values(measured, "nri_rdma_attachments") == Counter(it["state"] for it in status["sandboxes"])
    assert values(measured, "nri_rdma_attached_pods") == {"": 3}
    assert values(measured, "nri_rdma_network_namespaces_held") == {"": status["namespaces_held"]}
    daemon.stop_pod(one)
    measured = measured_now(source_of(daemon))
    assert values(measured, "nri_rdma_devices") == {"in_pods": 2, "free": 6}
    assert values(measured, "nri_rdma_attached_pods") == {"": 2}


def test_a_device_that_the_host_uses_is_not_free_and_one_that_is_gone_is_missing(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
    view = view_of(daemon.engine)
    used = tuple(
        replace(it, in_use=("the default route",)) if it.name == "mlx5_0" else it
        for it in view.node.devices
        if it.name != "mlx5_2"
    )
    source = replace(source_of(daemon), view=lambda: replace(view, node=replace(view.node, devices=used)))
    assert values(measured_now(source), "nri_rdma_devices") == {"free": 6, "in_use": 1, "missing": 1}


def test_a_device_that_a_pod_only_looks_on_is_free(daemon: InsideDaemon) -> None:
    view = view_of(daemon.engine)
    looking = frozenset({Holding(owner="ns/monitor", mode=Mode.SHARED, looks_on=True)})
    source = replace(source_of(daemon), view=lambda: replace(view, taken={it.id: looking for it in view.node.devices}))
    assert values(measured_now(source), "nri_rdma_devices") == {"free": 8}


def test_every_code_of_an_error_begins_with_0_and_counts_refusals(daemon: InsideDaemon) -> None:
    assert {labels[0] for labels in measured_now(source_of(daemon))["nri_rdma_refusals_total"]} == {*ErrorCode}
    for name in ("greedy", "greedy", "more"):
        with pytest.raises(NriRdmaError):
            daemon.start_pod(name, {PREFIX: "99"})
    measured, status = measured_now(source_of(daemon)), ask_status(daemon.settings.control_path)
    assert values(measured, "nri_rdma_refusals_total") == {"DEVICES-EXHAUSTED": 3}
    assert status["refused_count"] == 3


def test_calls_of_pods_begin_with_0_and_are_counted(daemon: InsideDaemon) -> None:
    source = source_of(daemon)
    before = measured_now(source)["nri_rdma_nri_requests_total"]
    assert before.keys() >= {("RunPodSandbox", "refused"), ("CreateContainer", "done"), ("StopPodSandbox", "done")}
    assert set(before.values()) == {0}
    source.tally.event_counts["RunPodSandbox", "refused"] += 1
    source.tally.kubelet_calls.note((("Allocate", "done"), 2_000_000))
    measured = measured_now(source)
    assert values(measured, "nri_rdma_nri_requests_total") == {"RunPodSandbox,refused": 1}
    assert values(measured, "nri_rdma_kubelet_requests_total") == {"Allocate,done": 1}
    assert [*measured["nri_rdma_kubelet_request_duration_seconds"]] == [("Allocate", "done")]


def test_pools_have_their_devices_and_shares(daemon: InsideDaemon) -> None:
    text = """
    [pools.rails]
    modes = ["exclusive"]
    select = {device = ["mlx5_0", "mlx5_1"]}
    [pools.hcas]
    modes = ["shared"]
    select = {device = ["mlx5_7"]}
    door = "resource"
    resource = "rdma/hca"
    shares = 8
    """
    settings = load({}, {}, Document(name="FILE", text=text)).settings
    daemon.engine.offering.policy = policy_of(settings.pools, settings.rules, allow_default_pool=False)
    measured = measured_now(source_of(daemon))
    assert values(measured, "nri_rdma_pool_devices") == {"rails": 2, "hcas": 1}
    assert measured["nri_rdma_pool_shares"] == {("hcas",): 8}
    assert measured["nri_rdma_pool_shares_given"] == {("hcas",): 0}


def test_what_could_not_be_brought_home_is_counted_and_not_as_a_pod_with_devices(daemon: InsideDaemon) -> None:
    pod = daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
    before = measured_now(source_of(daemon))
    assert before["nri_rdma_attachments_failing_to_return"] == {(): 0}
    assert before["nri_rdma_attached_pods"] == {(): 1}
    free = take_name(daemon.world, "rail2")
    ended = daemon.engine.attachments.end(pod.sandbox_id)
    assert ended is not None
    failing = "nri_rdma_attachments_failing_to_return"
    wait_until(lambda: values(measured_now(source_of(daemon)), failing) == {"": 1}, "the undo to fail")
    measured = measured_now(source_of(daemon))
    assert values(measured, "nri_rdma_attached_pods") == {}
    assert values(measured, "nri_rdma_attachments") == {"returning": 1}
    assert values(measured, "nri_rdma_devices") == {"in_pods": 1, "free": 7}
    free()
    ended.result(SOON)
    assert values(measured_now(source_of(daemon)), failing) == {}


def test_lost_netdevs_are_counted(daemon: InsideDaemon) -> None:
    pod = daemon.start_pod("one", {PREFIX: "1"})
    attachment = daemon.sandboxes.get(pod.sandbox_id)
    assert attachment is not None and attachment.now.record is not None
    assert measured_now(source_of(daemon))["nri_rdma_lost_netdevs_total"] == {(): 0}
    daemon.engine.attachments.lost().note(attachment.pod, attachment.now.record.plan.moves[0], "it is gone")
    measured, status = measured_now(source_of(daemon)), ask_status(daemon.settings.control_path)
    assert values(measured, "nri_rdma_lost_netdevs_total") == {"": status["lost_count"]} == {"": 1}


def test_what_needs_attention_is_1(daemon: InsideDaemon) -> None:
    source = replace(source_of(daemon), health=lambda: "the runtime is disconnected", reload_error=lambda: "no")
    measured = measured_now(source)
    assert values(measured, "nri_rdma_runtime_synchronized") == {}
    assert values(measured, "nri_rdma_configuration_refused") == {"": 1}
    measured = measured_now(source_of(daemon))
    assert values(measured, "nri_rdma_runtime_synchronized") == {"": 1}
    assert values(measured, "nri_rdma_configuration_refused") == {}


def test_the_guard_is_measured_by_handler_and_not_where_it_is_not_known(daemon: InsideDaemon) -> None:
    measured = measured_now(source_of(daemon))
    assert (measured["nri_rdma_guarded"], measured["nri_rdma_guard_resource_served"]) == ({}, {})
    source = replace(source_of(daemon), guards=lambda: {"runc": True, "kata": False})
    assert measured_now(source)["nri_rdma_guarded"] == {("runc",): True, ("kata",): False}
    view = view_of(daemon.engine)
    for known, guarding, served in (
        (Registration(error="", since=1.0), Guarding.ON, True),
        (Registration(error="no kubelet", since=1.0), Guarding.ON, False),
        (Registration(error="", since=1.0), Guarding.NO_HOOK, False),
    ):
        shares = replace(view.shares, registrations={GUARD_POOL: known}, guarding=guarding)
        source = replace(source_of(daemon), view=partial(replace, view, shares=shares))
        assert measured_now(source)["nri_rdma_guard_resource_served"] == {(): served}

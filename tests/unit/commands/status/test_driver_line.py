"""`status` and `explain` tell of the driver of claims: kubelet, API server, claims and rivals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.commands.status.driver_line import BRING_BACK, driver_attention, driver_facts, driver_sentence
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.model.driver import DriverView, PreparedClaims, Published
from nri_rdma.model.registration import Registration
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.rigs.inside_daemon import InsideDaemon

NAME = "rdma.noderesource.dev"
NOW = 10_000.0
NEW: dict[str, Any] = {
    "name": NAME,
    "registration": {"error": "the kubelet has not called SOCKET yet", "since": NOW - 4},
    "published": {
        "devices": 0, "slices": 0, "generation": 0, "written": 0.0, "error": "", "error_since": 0.0,
    },
    "claims": {"attached": 0, "failed": 0, "returning": 0, "waiting": 0},
    "rivals": {},
}  # fmt: skip
SERVING = NEW | {
    "registration": {"error": "", "since": NOW - 61},
    "published": NEW["published"] | {"devices": 129, "slices": 2, "generation": 7, "written": NOW - 5},
    "claims": {"attached": 3, "failed": 1, "returning": 0, "waiting": 2},
}
RIVAL = "the driver dra.net publishes devices of ours, too: pci-a, pci-b. A device can have one driver: take it out of"
RIVAL += " that driver's filter, or out of our pools"
LOST = SERVING | {"withheld": ["mlx5_0", "mlx5_1"]}
WITHHELD = f"without their netdevs, claims do not get these devices: mlx5_0, mlx5_1. {BRING_BACK}"


def without_api_server(since: float) -> dict[str, Any]:
    """The driver when the API server has answered 403 since then."""
    return SERVING | {"published": SERVING["published"] | {"error": "403. Next: rights.", "error_since": since}}


@pytest.mark.parametrize(
    ("driver", "lines"),
    [
        (
            NEW,
            [
                f"WARNING, the kubelet does not know the driver {NAME}, for 4 s: the kubelet has not called SOCKET yet",
                "0 claims prepared",
            ],
        ),
        (
            SERVING,
            [
                f"driver {NAME}: registered with the kubelet 1 min 1 s ago",
                "129 devices published in 2 slices, generation 7, written 5 s ago",
                "6 claims prepared: 3 attached, 1 failed, 2 waiting for their pods",
            ],
        ),
        (
            SERVING
            | {
                "published": NEW["published"] | {"devices": 1, "slices": 1, "generation": 2},
                "claims": NEW["claims"] | {"returning": 1},
                "rivals": {"dra.net": ["pci-a", "pci-b"]},
            },
            [
                f"driver {NAME}: registered with the kubelet 1 min 1 s ago",
                "1 device published in 1 slice, generation 2, found so at the start",
                "1 claim prepared: 1 returning",
                f"WARNING, {RIVAL}",
            ],
        ),
        (
            without_api_server(NOW - 9),
            [
                f"driver {NAME}: registered with the kubelet 1 min 1 s ago",
                "129 devices published in 2 slices, generation 7, written 5 s ago",
                "WARNING, not published as they are now, for 9 s: 403. Next: rights.",
                "6 claims prepared: 3 attached, 1 failed, 2 waiting for their pods",
            ],
        ),
        (
            LOST,
            [
                f"driver {NAME}: registered with the kubelet 1 min 1 s ago",
                "129 devices published in 2 slices, generation 7, written 5 s ago",
                "6 claims prepared: 3 attached, 1 failed, 2 waiting for their pods",
                f"WARNING, {WITHHELD}",
            ],
        ),
    ],
    ids=["new", "serving", "with a rival", "without API server", "without netdevs"],
)
def test_the_driver_is_told_line_by_line(driver: dict[str, Any], lines: list[str]) -> None:
    told = list(driver_facts(driver, NOW))
    assert [name for name, _ in told] == ["Claims", *[""] * (len(lines) - 1)]
    assert [words for _, words in told] == lines


def test_attention_is_needed_when_something_does_not_serve_for_a_minute_and_for_a_rival_at_once() -> None:
    assert list(driver_attention(SERVING, NOW)) == []
    assert list(driver_attention(NEW, NOW + 50)) == []
    (line,) = driver_attention(NEW, NOW + 70)
    unknown = f"the kubelet does not know the driver {NAME}, so that no claim is prepared"
    assert line == f"{unknown}: the kubelet has not called SOCKET yet"
    assert list(driver_attention(without_api_server(NOW - 59), NOW)) == []
    assert list(driver_attention(without_api_server(NOW - 61), NOW)) == [
        "the devices for claims are not published: 403. Next: rights."
    ]
    assert list(driver_attention(SERVING | {"rivals": {"dra.net": ["pci-a", "pci-b"]}}, NOW)) == [RIVAL]
    assert list(driver_attention(LOST, NOW)) == [WITHHELD]


def test_a_pod_with_claims_is_told_whether_the_driver_serves() -> None:
    assert driver_sentence(SERVING, NOW) == (
        "The node's driver of claims serves: 129 devices published in 2 slices, generation 7, written 5 s ago."
    )
    assert driver_sentence(NEW, NOW) == (
        "The node's driver of claims needs attention: the kubelet has not called SOCKET yet."
    )
    assert driver_sentence(LOST, NOW) == f"The node's driver of claims needs attention: {WITHHELD}."
    assert driver_sentence(without_api_server(NOW), NOW).endswith("needs attention: 403. Next: rights.")


# Over the socket


VIEW = DriverView(
    name=NAME,
    registration=Registration(error="", since=1.0),
    published=Published(devices=8, slices=1, generation=3, written=2.0),
    claims=PreparedClaims(attached=1),
)


def test_status_has_the_driver_as_a_document_as_lines_and_in_its_check(daemon: InsideDaemon) -> None:
    state = ("--state-dir", str(daemon.settings.state_dir))
    assert ask_status(daemon.settings.control_path)["driver"] is None
    assert "Claims" not in nri_rdma("status", *state).stdout
    daemon.driver = VIEW
    assert json.loads(nri_rdma("status", *state, "-o", "json").stdout)["driver"] == {
        "name": NAME,
        "registration": {"error": "", "since": 1.0},
        "published": {
            "devices": 8, "slices": 1, "generation": 3, "written": 2.0, "error": "", "error_since": 0.0,
        },
        "claims": {"attached": 1, "failed": 0, "returning": 0, "waiting": 0},
        "rivals": {},
        "withheld": [],
    }  # fmt: skip
    assert f"Claims       driver {NAME}: registered with the kubelet " in nri_rdma("status", *state, columns=160).stdout
    assert "dra.net" not in nri_rdma("status", *state, "--check").stdout
    daemon.driver = replace(VIEW, rivals={"dra.net": ["pci-a", "pci-b"]})
    done = nri_rdma("status", *state, "--check")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, RIVAL)


def test_explain_has_a_sentence_about_the_driver_for_pods_with_claims_only(
    daemon: InsideDaemon, tmp_path: Path
) -> None:
    daemon.driver = replace(VIEW, registration=Registration(error="no kubelet", since=1.0))
    manifest = tmp_path / "pod.json"
    for claims, is_told in (([], False), ([{"name": "rdma"}], True)):
        container = {"name": "main", "resources": {"claims": claims}}
        manifest.write_text(
            json.dumps({"kind": "Pod", "metadata": {"name": "one"}, "spec": {"containers": [container]}})
        )
        done = nri_rdma("explain", manifest, "--state-dir", daemon.settings.state_dir, columns=160)
        assert ("The node's driver of claims needs attention: no kubelet." in done.stdout) is is_told

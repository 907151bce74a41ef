"""The guard in a spec of another driver: on devices that ask us, and on no other; everything else stays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pytest

from nri_rdma.cdi.encoding import encode, spec_document
from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.spec import Spec
from nri_rdma.commands.cdi.guarded_spec import guarded_devices, with_guard

PREFIX = "rdma.noderesource.dev"
HOOK = PurePath("/usr/local/lib/nri-rdma/nri-rdma-hook")
OTHER_HOOK = {"hookName": "createRuntime", "path": "/bin/theirs", "args": ["theirs", "verify"], "env": ["A=1"]}
UVERBS = {"deviceNodes": [{"path": "/dev/infiniband/uverbs5", "permissions": "rw"}]}
KEY = {PREFIX: "{mode: exclusive}"}


def spec_with(*devices: dict[str, Any], **more: Any) -> Spec:
    document = {"cdiVersion": "0.6.0", "kind": "dra.example.com/nic", "devices": [*devices], **more}
    return parse(json.dumps(document).encode(), "file")


def device(name: str, edits: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {"name": name, "annotations": annotations or {}, "containerEdits": edits}


def guarded(spec: Spec, *options: str) -> Spec:
    return with_guard(spec, PREFIX, HOOK, options)


def test_a_device_with_our_key_brings_the_hook_that_asks_for_it_by_its_name() -> None:
    spec = guarded(spec_with(device("five", UVERBS, KEY)), "--control-socket", "/x.sock")
    (hook,) = spec_document(spec)["devices"][0]["containerEdits"]["hooks"]
    assert hook == {
        "hookName": "createRuntime",
        "path": str(HOOK),
        "args": [
            *("nri-rdma-hook", "verify", "--control-socket", "/x.sock"),
            *("--device", "dra.example.com/nic=five"),
        ],
        "timeout": 10,
    }
    assert guarded_devices(spec) == ("dra.example.com/nic=five",)


def test_everything_else_stays_and_a_second_run_changes_nothing() -> None:
    before = spec_with(
        device("five", {**UVERBS, "env": ["B=2"], "hooks": [OTHER_HOOK]}, {**KEY, "their.example/key": "x"}),
        device("plain", {"env": ["C=3"]}),
        annotations={"their.example/spec": "y"},
        containerEdits={"mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"]}]},
    )
    once = guarded(before)
    five, plain = once.devices
    assert (five.edits.hooks[:-1], plain) == (before.devices[0].edits.hooks, before.devices[1])
    without = replace(five, edits=replace(five.edits, hooks=five.edits.hooks[:-1]))
    assert replace(once, devices=(without, plain)) == before
    assert guarded(parse(encode(once), "file")) == once


def test_of_a_hook_elsewhere_and_of_other_flags_the_new_ones_count() -> None:
    spec = guarded(spec_with(device("five", UVERBS, KEY)))
    (moved,) = with_guard(spec, PREFIX, PurePath("/opt/nri-rdma-hook"), ("--control-socket", "/y")).devices
    assert [(it.path, it.args[2:4]) for it in moved.edits.hooks] == [("/opt/nri-rdma-hook", ("--control-socket", "/y"))]


def test_a_key_on_the_spec_asks_for_all_its_devices() -> None:
    spec = guarded(spec_with(device("a", UVERBS), device("b", UVERBS), annotations=KEY))
    assert guarded_devices(spec) == ("dra.example.com/nic=a", "dra.example.com/nic=b")


def test_nodes_of_the_spec_and_netdevs_are_of_its_devices_too() -> None:
    net = {"netDevices": [{"hostInterfaceName": "eth5", "name": "net1"}]}
    nodes = spec_with(device("five", {"env": ["A=1"]}, KEY), containerEdits=UVERBS)
    assert guarded_devices(guarded(nodes)) == ("dra.example.com/nic=five",)
    assert guarded_devices(guarded(spec_with(device("five", net, KEY), cdiVersion="1.1.0"))) != ()


@pytest.mark.parametrize(
    ("edits", "annotations"),
    [
        (UVERBS, {}),
        (UVERBS, {f"{PREFIX}.other": "{}"}),
        ({"deviceNodes": [{"path": "/dev/infiniband/rdma_cm"}]}, KEY),
        ({"env": ["A=1"]}, KEY),
    ],
    ids=["no key", "another key", "rdma_cm alone", "no RDMA device"],
)
def test_a_device_that_nothing_would_be_attached_for_has_no_guard_and_loses_one(
    edits: dict[str, Any], annotations: dict[str, str]
) -> None:
    """Its containers would be refused for ever."""
    spec = spec_with(device("five", edits, annotations))
    assert guarded(spec) == spec
    (asked,) = guarded(spec_with(device("five", UVERBS, KEY))).devices
    with_hook = replace(spec.devices[0], edits=replace(spec.devices[0].edits, hooks=asked.edits.hooks))
    assert guarded(replace(spec, devices=(with_hook,))) == spec

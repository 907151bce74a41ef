"""What the values of a CDI spec say of themselves."""

from __future__ import annotations

from dataclasses import fields

import pytest

from nri_rdma.cdi.spec import DeviceNode, Edits, Hook, HookName, IntelRdt, Kind, Mount, NetDevice, Version

UVERBS = "/dev/infiniband/uverbs0"
NOT_EMPTY = (
    Edits(env=("A=",)),
    Edits(device_nodes=(DeviceNode(path=UVERBS),)),
    Edits(net_devices=(NetDevice(host_interface_name="eth1", name="rdma0"),)),
    Edits(hooks=(Hook(hook_name=HookName.PRESTART, path="/bin/true"),)),
    Edits(mounts=(Mount(host_path="/a", container_path="/b"),)),
    Edits(intel_rdt=IntelRdt()),
    Edits(additional_gids=(0,)),
)


@pytest.mark.parametrize(
    ("path", "host_path", "is_rdma"),
    [
        (UVERBS, "", True),
        ("/dev/infiniband/rdma_cm", "", True),
        ("/dev/a", UVERBS, True),
        (UVERBS, "/dev/null", False),
        ("/dev/infiniband", "", False),
        ("/dev/infiniband2/uverbs0", "", False),
        ("/run/dev/infiniband/uverbs0", "", False),
        ("", "", False),
    ],
)
def test_a_node_is_of_the_rdma_subsystem_by_its_path_on_the_host(path: str, host_path: str, is_rdma: bool) -> None:
    assert DeviceNode(path=path, host_path=host_path).is_rdma is is_rdma


def test_edits_that_change_nothing_are_empty() -> None:
    assert Edits().is_empty


@pytest.mark.parametrize("edits", NOT_EMPTY, ids=[it.name for it in fields(Edits)])
def test_edits_with_any_change_are_not_empty(edits: Edits) -> None:
    assert not edits.is_empty


def test_every_field_of_edits_has_a_case() -> None:
    empty = Edits()
    changed = [
        {it.name for it in fields(Edits) if getattr(one, it.name) != getattr(empty, it.name)} for one in NOT_EMPTY
    ]
    assert changed == [{it.name} for it in fields(Edits)]


def test_a_container_asks_with_vendor_class_and_device() -> None:
    kind = Kind(vendor="vendor.example", device_class="nic")
    assert str(kind) == "vendor.example/nic"
    assert kind.qualified("vf0") == "vendor.example/nic=vf0"


def test_versions_are_in_their_order_as_numbers() -> None:
    numbers = [tuple(map(int, version.split("."))) for version in Version]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == ((0, 3, 0), (1, 1, 0))

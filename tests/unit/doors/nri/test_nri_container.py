"""A container of a message is read as far as somebody asks, and says what the message says."""

from __future__ import annotations

import pytest

from nri_rdma.doors.nri.nri_container import NriContainer
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.pb import nri_pb2 as nri


def message() -> nri.CreateContainerRequest:
    made = nri.CreateContainerRequest()
    made.pod.id, made.pod.uid, made.pod.name, made.pod.namespace = "s1", "u1", "train", "ml"
    made.pod.annotations["rdma.noderesource.dev/pod"] = "1"
    made.pod.labels["team"] = "vision"
    made.pod.linux.namespaces.add(type="network", path="/run/netns/x")
    made.container.name = "main"
    made.container.env.extend(["PATH=/bin", "NCCL_IB_HCA=mine", "NVIDIA_VISIBLE_DEVICES=0"])
    made.container.CDI_devices.add(name="dra.example.com/nic=a")
    made.container.linux.cgroups_path = "/kubepods/x"
    made.container.linux.devices.add(path="/dev/infiniband/uverbs0", type="c", major=231, minor=192)
    made.container.linux.net_devices["rail0"].name = "net1"
    return made


def container(told: nri.CreateContainerRequest) -> NriContainer:
    return NriContainer(told, told.SerializeToString())


def test_every_part_is_the_messages() -> None:
    made = container(message())
    assert (made.sandbox_id, made.pod_name, made.name, made.was_there) == ("s1", "ml/train", "main", False)
    assert dict(made.annotations) == {"rdma.noderesource.dev/pod": "1"}
    assert made.pod == Pod(sandbox_id="s1", uid="u1", name="train", namespace="ml", netns_path="/run/netns/x", pid=0)
    assert made.asker == Asker(namespace="ml", labels=(("team", "vision"),), host_network=False)
    assert made.devices == {"/dev/infiniband/uverbs0": (231, 192)}
    assert (made.cdi_devices, made.net_devices) == (("dra.example.com/nic=a",), frozenset({"rail0"}))
    assert (set(made.env), made.is_privileged, made.cgroups_path) == ({"NCCL_IB_HCA"}, False, "/kubepods/x")
    assert (made.gpus.visible, made.gpus.cdi_devices) == ("0", ("dra.example.com/nic=a",))


@pytest.mark.parametrize(("majors", "has"), [({231}, True), ({10}, False), (set(), False), (None, True)])
def test_a_major_number_is_found_whether_the_devices_were_read_or_not(majors: set[int] | None, has: bool) -> None:
    made = container(message())
    assert made.has_major(majors) is has
    assert made.devices
    assert made.has_major(majors) is has


def test_what_was_read_once_is_not_read_again() -> None:
    told = message()
    made = container(told)
    before = made.devices
    told.container.linux.devices.add(path="/dev/null", type="c", major=1, minor=3)
    assert made.devices is before


def test_a_container_that_may_use_every_device_is_privileged() -> None:
    told = message()
    told.container.linux.resources.devices.add(allow=True, access="rwm")
    assert container(told).is_privileged

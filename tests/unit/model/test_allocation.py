"""What the kubelet gave, by container."""

from __future__ import annotations

from nri_rdma.model.allocation import ClaimDevice, ContainerAllocation, DeviceIds, PodAllocation


def claim(device: str, *cdi_devices: str) -> ClaimDevice:
    return ClaimDevice(
        namespace="training",
        claim="net",
        driver="sriovnetwork.k8snetworkplumbingwg.io",
        pool="node-7",
        device=device,
        cdi_devices=cdi_devices,
    )


def test_a_containers_cdi_devices_are_those_of_its_claims_each_once_and_in_order() -> None:
    container = ContainerAllocation(
        name="main",
        claims=(
            claim("vf0", "v.example/vf=b", "v.example/vf=a"),
            claim("vf1"),
            claim("vf2", "v.example/vf=a", "w/x=1"),
        ),
    )
    assert container.cdi_devices == ("v.example/vf=b", "v.example/vf=a", "w/x=1")


def test_device_plugin_ids_are_no_cdi_devices() -> None:
    container = ContainerAllocation(name="main", resources=(DeviceIds(resource="rdma/hca", ids=("0", "1")),))
    assert container.cdi_devices == ()


def test_the_named_containers_are_those_that_were_given_any_device() -> None:
    allocation = PodAllocation(
        containers=(
            ContainerAllocation(name="plain"),
            ContainerAllocation(name="plugin", resources=(DeviceIds(resource="rdma/hca", ids=("0",)),)),
            ContainerAllocation(name="claim", claims=(claim("vf0"),)),
        )
    )
    assert allocation.named == {"plugin", "claim"}


def test_a_pod_that_was_given_nothing_names_no_container() -> None:
    assert PodAllocation().named == frozenset()

"""The kubelet's checkpoint of claims: whose claims are in it, and what cannot be read of it."""

from __future__ import annotations

import json
import zlib

import pytest

from nri_rdma.errors import ErrorCode, KubeletError
from nri_rdma.text.kubelet_checkpoint import claimed, may_have
from tests.rig.dra_state import ClaimState, checkpoint

OURS, THEIRS = "rdma.noderesource.dev", "gpu.example.com"
POD, OTHER, PLAIN = "6f0c0000-0000-4000-8000-000000000001", "6f0c0000-0000-4000-8000-000000000002", "7f0c"
NIC, FABRIC = f"{OURS}/claim=c1-nic", f"{OURS}/claim=c2-fabric"
BOTH = checkpoint(
    (
        ClaimState(uid="c1", name="nics", pods=(POD, OTHER), cdi_devices={OURS: (NIC,)}),
        ClaimState(uid="c2", name="all", pods=(POD,), cdi_devices={THEIRS: (f"{THEIRS}/gpu=0",), OURS: (FABRIC,)}),
        ClaimState(uid="c3", name="gpu", pods=(OTHER, PLAIN), cdi_devices={THEIRS: (f"{THEIRS}/gpu=1",)}),
    )
)

RECORDED = (
    rb"""{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\","""
    rb"""\"ClaimInfoStateList\":[{\"ClaimUID\":\"58254bca-6ec9-4876-9034-9bb4caed8996\",\"ClaimName\":\"shared\","""
    rb"""\"Namespace\":\"default\",\"PodUIDs\":{\"0e88ac90-44ab-4299-a8ce-2c83d804d72a\":{},"""
    rb"""\"a9a016d8-f143-495e-ba3e-0e441cbc0c36\":{}},\"DriverState\":{\"rdma.noderesource.dev\":{\"Devices\":"""
    rb"""[{\"PoolName\":\"n1\",\"DeviceName\":\"pci-0000-19-00-0\",\"ShareID\":null,\"RequestNames\":[\"nic\"],"""
    rb"""\"CDIDeviceIDs\":[\"rdma.noderesource.dev/claim=58254bca-6ec9-4876-9034-9bb4caed8996-nic\"]}]}}}]}","""
    rb""""Checksum":907855224}"""
)
"""As kubelet 1.37.2 wrote it (tests/cluster/test_claim_shapes.py): the second pod of a shared claim is there, too."""


def test_a_real_kubelets_file_is_read_and_the_rigs_has_its_form() -> None:
    uid, pods = (
        "58254bca-6ec9-4876-9034-9bb4caed8996",
        ("0e88ac90-44ab-4299-a8ce-2c83d804d72a", "a9a016d8-f143-495e-ba3e-0e441cbc0c36"),
    )
    names = (f"{OURS}/claim={uid}-nic",)
    assert [claimed(RECORDED, pod, OURS) for pod in pods] == [names, names]
    same = checkpoint((ClaimState(uid=uid, name="shared", pods=pods, cdi_devices={OURS: names}),))
    assert same.replace(b"d0", b"pci-0000-19-00-0").partition(b'"Checksum')[0] == RECORDED.partition(b'"Checksum')[0]
    assert json.loads(RECORDED)["Checksum"] == zlib.crc32(json.loads(RECORDED)["Data"].encode())


def changed(old: str, new: str) -> bytes:
    """The file with another form inside; its checksum is of the old one."""
    assert old in json.loads(BOTH)["Data"]
    outer = json.loads(BOTH)
    return json.dumps({**outer, "Data": outer["Data"].replace(old, new)}).encode()


def test_a_pod_has_the_cdi_devices_of_all_its_claims_of_the_driver() -> None:
    assert claimed(BOTH, POD, OURS) == (NIC, FABRIC)
    assert claimed(BOTH, OTHER, OURS) == (NIC,)
    assert claimed(BOTH, PLAIN, OURS) == ()
    assert claimed(BOTH, PLAIN, THEIRS) == (f"{THEIRS}/gpu=1",)


@pytest.mark.parametrize("data", [b"", checkpoint(()), checkpoint((ClaimState(uid="c1", name="x", pods=(POD,)),))])
def test_without_a_claim_of_the_driver_nothing_is_parsed(data: bytes) -> None:
    assert (may_have(data, POD, OURS), claimed(data, POD, OURS)) == (False, ())


def test_a_pod_without_a_uid_has_none() -> None:
    assert (may_have(BOTH, "", OURS), claimed(BOTH, "", OURS)) == (False, ())


def test_fields_that_are_not_known_change_nothing() -> None:
    more = changed('"Namespace":', '"SkipNodeOperations":true,"Namespace":')
    assert claimed(more, POD, OURS) == (NIC, FABRIC)
    assert claimed(changed("checkpoint.dra.kubelet.k8s.io/v1", "checkpoint.dra.kubelet.k8s.io/v2"), OTHER, OURS) == (
        NIC,
    )


@pytest.mark.parametrize(
    "data",
    [
        f"{POD} {OURS}".encode(),
        json.dumps({"data": f"{POD} {OURS}"}).encode(),
        json.dumps([POD, OURS]).encode(),
        BOTH[:-20],
        changed('"ClaimInfoStateList"', '"Claims"'),
        changed('"PodUIDs"', '"Pods"'),
        changed('"DriverState"', '"Drivers"'),
        changed('"CDIDeviceIDs"', '"CDI"'),
        changed(f'{{"{OTHER}":{{}},"{PLAIN}":{{}}}}', "7"),
        b"[" * 100_000 + f"{POD} {OURS}".encode(),
    ],
    ids=["text", "no data", "list", "cut", "claims", "pods", "drivers", "devices", "number", "deep"],
)
def test_a_form_that_is_not_known_refuses_the_pods_that_may_have_a_claim(data: bytes) -> None:
    with pytest.raises(KubeletError, match="has a form that is not known") as caught:
        claimed(data, POD, OURS)
    assert (caught.value.code, POD in caught.value.where) == (ErrorCode.KUBELET_STATE, True)
    assert claimed(data, "8f0c0000-0000-4000-8000-000000000003", OURS) == ()


def test_a_claim_without_cdi_devices_is_not_taken_for_none() -> None:
    data = checkpoint((ClaimState(uid="c1", name="nics", pods=(POD,), cdi_devices={OURS: ()}),))
    with pytest.raises(KubeletError, match="a claim of this pod has no CDI device"):
        claimed(data, POD, OURS)

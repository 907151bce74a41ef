"""The CDI spec of a claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.spec import Device, HookName, Kind
from nri_rdma.decide.claim_admission import AdmittedClaim
from nri_rdma.doors.dra.claim_specs import SpecStyle, cdi_device, claim_of, claim_spec, is_for, is_of, spec_file
from nri_rdma.model.claim import Claim, ClaimName, ClaimRequest
from nri_rdma.model.device import RdmaDevice
from nri_rdma.model.request import Mode
from tests.unit.model.hardware import RDMA_CM, nic, umad, uverbs

PREFIX = "rdma.example.com"
NAME = ClaimName(namespace="team", name="rails", uid="u1")
CLAIM = Claim(namespace="team", name="rails", uid="u1", label="rails", requests=())
PLAIN = SpecStyle(prefix=PREFIX, hook=None)


def admitted(name: str, *devices: RdmaDevice) -> AdmittedClaim:
    request = ClaimRequest(name=name, devices=("a",), pool="n", parameters={}, from_claim={})
    return AdmittedClaim(request=request, devices=devices, pool="rails", mode=Mode.SHARED, text=f'{{"name": "{name}"}}')


def only(style: SpecStyle) -> Device:
    (device,) = claim_spec(CLAIM, [admitted("nic", nic(0))], RDMA_CM, style).devices
    return device


def test_each_request_is_a_cdi_device_with_our_key_and_the_nodes_of_its_devices() -> None:
    two = nic(2, chars=(uverbs(2), umad(2)))
    spec = claim_spec(CLAIM, [admitted("req/sub", nic(0), two), admitted("b", nic(1))], RDMA_CM, PLAIN)
    assert spec.kind.qualified("x") == "rdma.noderesource.dev/claim=x"
    assert [it.name for it in spec.devices] == ["u1-req", "u1-b"]
    assert [it.annotations for it in spec.devices] == [((PREFIX, '{"name": "req/sub"}'),), ((PREFIX, '{"name": "b"}'),)]
    assert [[node.path for node in it.edits.device_nodes] for it in spec.devices] == [
        ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"],
        ["/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"],
    ]


def test_the_spec_names_the_claim() -> None:
    told = dict(claim_spec(CLAIM, [], RDMA_CM, PLAIN).annotations)
    assert len(told.pop("claims.noderesource.dev/allocation")) == 64
    assert told == {"claims.noderesource.dev/name": "team/rails"}


def test_a_spec_is_for_its_claim_in_its_boot_as_it_is_allocated() -> None:
    style = replace(PLAIN, boot="boot-1")
    request = ClaimRequest(name="nic", devices=("pci-1",), pool="node-a", parameters={"mtu": 9000}, from_claim={})
    claim = replace(CLAIM, requests=(request,))
    text = encode(claim_spec(claim, [], RDMA_CM, style))
    assert is_for(text, claim, "boot-1")
    assert not is_for(text, claim, "boot-2")
    changes: list[dict[str, Any]] = [
        {"devices": ("pci-2",)}, {"name": "other"}, {"pool": "node-b"}, {"is_admin": True},
        {"parameters": {}}, {"from_claim": {"mtu": 9000}},
    ]  # fmt: skip
    for changed in changes:
        assert not is_for(text, replace(claim, requests=(replace(request, **changed),)), "boot-1")
    forms = (b"", b"{", b"[]", b"1", b"{}", b"\xff", b"[" * 100_000)
    annotations = (b"[]", b"{}", b'"x"', b'{"claims.noderesource.dev/boot": 1}')
    for broken in (*forms, *(b'{"annotations": %s}' % it for it in annotations)):
        assert not is_for(broken, claim, "boot-1")
        assert not is_for(broken, claim, "")


def test_a_node_without_rdma_cm_gives_none() -> None:
    (device,) = claim_spec(CLAIM, [admitted("nic", nic(0))], None, PLAIN).devices
    assert [node.path for node in device.edits.device_nodes] == ["/dev/infiniband/uverbs0"]


def test_numbers_are_told_only_to_a_runtime_that_cannot_look_for_them() -> None:
    looks, told = only(PLAIN), only(SpecStyle(prefix=PREFIX, hook=None, has_numbers=True))
    assert [(node.major, node.minor) for node in looks.edits.device_nodes] == [(None, None)] * 2
    assert [(node.major, node.minor) for node in told.edits.device_nodes] == [(231, 192), (10, 58)]


def test_the_guard_asks_for_the_cdi_device() -> None:
    (hook,) = only(SpecStyle(prefix=PREFIX, hook=Path("/opt/hook"), options=("--timeout", "3"))).edits.hooks
    assert (hook.hook_name, hook.path) == (HookName.CREATE_RUNTIME, "/opt/hook")
    assert hook.args[1:] == ("verify", "--timeout", "3", "--device", "rdma.noderesource.dev/claim=u1-nic")
    assert only(PLAIN).edits.hooks == ()


def test_the_names_of_a_claim_are_its_uids() -> None:
    assert cdi_device("u1", "req/sub") == "rdma.noderesource.dev/claim=u1-req"
    assert spec_file("u1") == "rdma.noderesource.dev-claim-u1.json"


def test_a_spec_names_its_claim_for_the_next_daemon() -> None:
    made = claim_spec(CLAIM, [admitted("nic", nic(0))], None, PLAIN)
    assert claim_of(spec_file("u1"), made) == NAME
    assert claim_of("other-" + spec_file("u1"), made) is None
    assert claim_of(spec_file("u1"), replace(made, annotations=())) is None
    assert claim_of(spec_file("u1"), replace(made, kind=Kind(vendor="v.example.com", device_class="claim"))) is None


def test_a_cdi_device_is_of_the_claim_whose_uid_it_has() -> None:
    assert is_of(cdi_device("u1", "req/sub"), "u1")
    assert not is_of(cdi_device("u12", "req"), "u1")
    assert not is_of("dra.example.com/claim=u1-req", "u1")

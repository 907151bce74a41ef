"""What the journal stores it reads back the same, and what it did not store it does not take."""

import hashlib
import json
import os
from dataclasses import replace
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nri_rdma.attach.journal import Journal, decode_record, encode_record
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import do_steps, undo_steps
from nri_rdma.decide.inject import AttachedDevice, AttachedRequest
from nri_rdma.decide.policy import Admitted
from nri_rdma.errors import ErrorCode, StateError
from nri_rdma.model.device import CharDevice, CharKind, EbpfPrograms, LinkLayer, Port
from nri_rdma.model.inherited import Brought, Inherited, Takes
from nri_rdma.model.network import RoutingRule
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import (
    UNLIMITED,
    Align,
    AlignTo,
    DeviceRequest,
    InterfaceConfig,
    Match,
    Mode,
    RdmaLimits,
    Scope,
    Use,
)
from nri_rdma.observe.spans import Recorder
from tests.fakes.kernel import FakeKernel
from tests.unit.attach.builders import POD_PATH, make_device, make_pod, record_of
from tests.unit.rigs.attachments import make_world, placed_on

SPANS = Recorder(capacity=1)
PCI = PciAddress(0, 0x1B, 0, 1)
RDMA_CM = CharDevice(kind=CharKind.RDMA_CM, path="/dev/rdma_cm", major=10, minor=122, mode=0o666, uid=0, gid=9)


@pytest.fixture
def record() -> SandboxRecord:
    """One in which every field of every type is used."""
    world = make_world()
    kernel = FakeKernel(world)
    moved = record_of(kernel, kernel.open_namespace(POD_PATH), *placed_on(world, "rail0"))
    device = replace(
        make_device("mlx5_1", kernel.links(kernel.host)),
        pci=PCI,
        pci_root="pci0000:17",
        pci_path=("0000:17:01.0", str(PCI)),
        numa_node=1,
        ports=(Port(number=1, link_layer=LinkLayer.ETHERNET, state="ACTIVE", speed_gbps=400),),
        in_use=("a reason",),
    )
    request = DeviceRequest(
        name="rails",
        where="here",
        match=Match(pci=PCI, vendor="15b3", link_layer=LinkLayer.INFINIBAND, min_speed_gbps=100),
        count=None,
        scope=Scope(only=frozenset({"a", "b"}), but=frozenset({"c"})),
        align=Align(to=AlignTo.GPU, strict=True),
        gpus=(PCI,),
        mode=Mode.EXCLUSIVE,
        interface=InterfaceConfig(
            name="rdma%d", mtu=9000, addresses=((ip_interface("10.0.0.1/24"), ip_interface("fd00::1/64")), ())
        ),
        char_kinds=frozenset(CharKind),
        memlock=UNLIMITED,
        limits=RdmaLimits(hca_handles=8),
    )
    attached = AttachedRequest(
        admitted=Admitted(request=request, mode=Mode.EXCLUSIVE),
        devices=(AttachedDevice(device=device, netdev_names=("rdma0",)),),
    )
    return replace(moved, attached=(*moved.attached, attached), rdma_cm=RDMA_CM)


def test_a_record_is_read_back_the_same(record: SandboxRecord, tmp_path: Path) -> None:
    assert decode_record(encode_record(record), where="memory") == record
    journal = Journal(tmp_path)
    journal.write(record)
    journal.write(replace(record, state=Phase.ATTACHED))
    assert journal.load() == ((replace(record, state=Phase.ATTACHED),), ())
    for _ in range(2):
        journal.remove(record.pod.sandbox_id)
        assert journal.load() == ((), ())


def test_limits_of_a_device_are_read_back_and_a_daemon_of_before_reads_a_record_without_any(
    record: SandboxRecord,
) -> None:
    attached = json.loads(encode_record(record))["record"]["attached"]
    assert {name for item in attached for device in item["devices"] for name in device} == {"device", "netdev_names"}
    *others, last = record.attached
    (device,) = last.devices
    limited = replace(last, devices=(replace(device, limits=RdmaLimits(hca_handles=204, hca_objects=6553)),))
    shared = replace(record, attached=(*others, limited))
    assert decode_record(encode_record(shared), where="memory") == shared


def test_what_is_for_the_environment_is_read_back_and_a_daemon_of_before_reads_a_record_without_any(
    record: SandboxRecord,
) -> None:
    usual = replace(record, attached=tuple(replace(item, pod_interface="eth0") for item in record.attached))
    attached = json.loads(encode_record(usual))["record"]["attached"]
    assert not any({"pod_interface"} & set(item) or {"env"} & set(item["admitted"]) for item in attached)
    assert not any("use" in item["admitted"]["request"] for item in attached)
    *others, last = record.attached
    admitted = replace(
        last.admitted,
        env=(("NCCL_IB_TC", "106"),),
        request=replace(last.admitted.request, use=Use.STORAGE, roce_version=1),
    )
    for interface in ("net7", ""):
        told = replace(record, attached=(*others, replace(last, admitted=admitted, pod_interface=interface)))
        assert decode_record(encode_record(told), where="memory") == told


def test_programs_on_a_netdev_are_read_back_and_a_daemon_of_before_reads_a_record_without_any(
    record: SandboxRecord,
) -> None:
    (first, *others), (held, *rest) = record.attached, record.attached[0].devices
    (netdev, *more) = held.device.netdevs
    attached = json.loads(encode_record(record))["record"]["attached"]
    assert not any(
        "programs" in it for item in attached for known in item["devices"] for it in known["device"]["netdevs"]
    )
    netdevs = (replace(netdev, programs=EbpfPrograms(filters=("count",), tcx=("handle_ingress",))), *more)
    with_programs = replace(held, device=replace(held.device, netdevs=netdevs))
    other = replace(record, attached=(replace(first, devices=(with_programs, *rest)), *others))
    assert decode_record(encode_record(other), where="memory") == other


def test_that_no_runtime_lists_a_pod_is_read_back_and_a_daemon_of_before_reads_a_record_of_one_that_is(
    record: SandboxRecord,
) -> None:
    assert not {"is_listed", "cgroups_path"} & set(json.loads(encode_record(record))["record"]["pod"])
    unlisted = replace(record, pod=replace(record.pod, is_listed=False, cgroups_path="machine.slice:libpod:box"))
    assert decode_record(encode_record(unlisted), where="memory") == unlisted


@pytest.mark.parametrize("sandbox_id", ["", "../elsewhere", ".hidden", "a/b", "a\0b", "a\nb", "a" * 201, "\ud800"])
def test_an_id_that_is_no_file_name_is_refused(record: SandboxRecord, tmp_path: Path, sandbox_id: str) -> None:
    with pytest.raises(StateError):
        Journal(tmp_path).write(replace(record, pod=make_pod(sandbox_id)))
    (tmp_path / "elsewhere.json").touch()
    Journal(tmp_path / "journal").remove(sandbox_id)  # an undo ends with this: it would be tried again for ever
    assert (tmp_path / "elsewhere.json").exists()


def test_what_is_no_regular_file_is_set_aside_and_keeps_nobody_waiting(record: SandboxRecord, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(record)
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "link.json").symlink_to(tmp_path / f"{record.key}.json")
    (tmp_path / "folder.json").mkdir()
    records, errors = journal.load()
    assert records == (record,)
    assert sorted(Path(error.where).name for error in errors) == ["fifo.json", "folder.json", "link.json"]
    assert ["it is no regular file" in str(error) for error in errors] == [True, False, False]  # the first one by name
    assert journal.load() == ((record,), ())


def test_a_value_that_no_reader_would_take_back_is_a_bug_and_no_text(record: SandboxRecord, tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="complex"):
        Journal(tmp_path).write(replace(record, pod=replace(record.pod, name=1j)))  # type: ignore[arg-type]
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"version": 1}', b'{"version": 2}', b"[" * 100_000],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(StateError) as caught:
        decode_record(data, where="memory")
    assert caught.value.code is ErrorCode.STATE_UNREADABLE


def test_a_record_of_another_version_is_refused_with_both_versions(record: SandboxRecord) -> None:
    document: dict[str, Any] = json.loads(encode_record(record)) | {"version": 2}
    with pytest.raises(StateError, match="version 2, this daemon reads 1"):
        decode_record(json.dumps(document).encode(), where="memory")


def test_what_a_netdev_may_take_along_and_who_watches_are_read_back(record: SandboxRecord) -> None:
    (move,), (attached, *others) = record.plan.moves, record.attached
    taking = replace(move, takes=Takes(addresses=True, rules=True))
    watched = replace(attached, admitted=replace(attached.admitted, is_watched=True))
    whole = replace(record, plan=replace(record.plan, moves=(taking,)), attached=(watched, *others))
    assert decode_record(encode_record(whole), where="memory") == whole


def test_a_changed_record_is_refused(record: SandboxRecord) -> None:
    document: dict[str, Any] = json.loads(encode_record(record))
    document["record"]["pod"]["uid"] = "another"
    with pytest.raises(StateError, match="checksum"):
        decode_record(json.dumps(document).encode(), where="memory")


def test_what_only_placement_needs_is_not_written_and_a_daemon_that_does_not_know_it_reads_the_record() -> None:
    world = make_world()
    kernel = FakeKernel(world)
    record = record_of(kernel, kernel.open_namespace(POD_PATH), *placed_on(world, "rail0"))
    (request,) = json.loads(encode_record(record))["record"]["attached"]
    assert request["admitted"]["request"].keys().isdisjoint({"gpus_from", "gpus_problem"})
    assert decode_record(encode_record(record), where="memory") == record


def test_a_daemon_that_does_not_know_routes_and_shares_reads_the_record_of_a_pod_without_them() -> None:
    world = make_world()
    kernel = FakeKernel(world)
    record = record_of(kernel, kernel.open_namespace(POD_PATH), *placed_on(world, "rail0"))
    plain = json.loads(encode_record(record))["record"]
    (attached,), (move,) = plain["attached"], plain["plan"]["moves"]
    assert move.keys().isdisjoint({"config", "takes", "inherited"})
    assert "is_watched" not in attached["admitted"]
    request = attached["admitted"]["request"]
    assert request.keys().isdisjoint({"shares", "routes", "rules", "neighbours", "ethtool"})
    assert request["interface"].keys() == {"name", "mtu", "addresses"}


_ANY_TEXT = st.text(st.characters(exclude_categories=[]))


@given(alias=_ANY_TEXT, mtu=st.integers(-(1 << 63), (1 << 63) - 1), label=_ANY_TEXT)
@example(alias="\x7f", mtu=0, label="plain")
@example(alias=os.fsdecode(b"caf\xe9"), mtu=0, label="plain")
@example(alias="plain", mtu=0, label="\x7f")
@example(alias="plain", mtu=0, label="café")
def test_the_checksum_is_that_of_the_text_that_earlier_daemons_wrote(alias: str, mtu: int, label: str) -> None:
    """A name may hold any bytes; what is no UTF-8 passes as surrogates."""
    world = make_world()
    kernel = FakeKernel(world)
    record = record_of(kernel, kernel.open_namespace(POD_PATH), *placed_on(world, "rail0"))
    (move,) = record.plan.moves
    plan = replace(record.plan, moves=(replace(move, link=replace(move.link, alias=alias, mtu=mtu)),))
    named = replace(record, plan=plan, pod=replace(record.pod, name=label))
    document = json.loads(encode_record(named))
    text = json.dumps(document["record"], sort_keys=True, separators=(",", ":"))
    assert document["checksum"] == hashlib.sha256(text.encode()).hexdigest()
    assert decode_record(encode_record(named), where="memory") == named


def _as_before_sysctls(record: SandboxRecord) -> bytes:
    """The file that a daemon wrote which knew nothing of sysctls, in its layout."""
    body: dict[str, Any] = json.loads(encode_record(record))["record"]
    for move in body["plan"]["moves"]:
        del move["link"]["sysctls"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({"version": 1, "checksum": checksum, "record": body}, indent=1).encode()


def test_the_journal_of_a_daemon_that_knew_no_sysctls_is_read_and_its_devices_come_home(tmp_path: Path) -> None:
    world = make_world()
    kernel = FakeKernel(world)
    namespace = kernel.open_namespace(POD_PATH)
    before = world.snapshot()
    record = record_of(kernel, namespace, *placed_on(world, "rail0"))
    do_steps(kernel, namespace, steps_of(record.plan), SPANS)
    (tmp_path / f"{record.key}.json").write_bytes(_as_before_sysctls(record))
    ((read,), errors) = Journal(tmp_path).load()
    assert (errors, read.plan.moves[0].link.sysctls) == ((), "")
    assert undo_steps(kernel, namespace, steps_of(read.plan), SPANS) == ()
    assert world.snapshot() == before


def test_a_record_that_cannot_be_written_leaves_nothing_behind(record: SandboxRecord, tmp_path: Path) -> None:
    (tmp_path / f"{record.key}.json" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        Journal(tmp_path).write(record)
    assert [path.name for path in tmp_path.iterdir()] == [f"{record.key}.json"]


@pytest.mark.parametrize(
    ("changed", "has_room"),
    [
        pytest.param({}, True, id="room"),
        pytest.param({"f_bavail": 16}, True, id="room for one record, and no more"),
        pytest.param({"f_bavail": 15}, False, id="too few blocks"),
        pytest.param({"f_favail": 1}, True, id="room for one file, and no more"),
        pytest.param({"f_favail": 0}, False, id="no room for a file"),
        pytest.param({"f_blocks": 0, "f_bavail": 0}, True, id="does not count blocks"),
        pytest.param({"f_files": 0, "f_favail": 0}, True, id="does not count files"),
        pytest.param({"f_flag": os.ST_RDONLY}, False, id="read-only"),
    ],
)
def test_there_is_room_as_the_file_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, int], has_room: bool
) -> None:
    """A record has room in 64 KiB."""
    fields = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_flag")
    whole = dict(zip(fields, (4096, 4096, 1000, 900, 800, 100, 90, 80, 0), strict=True)) | changed
    journal = Journal(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result((*whole.values(), 255)))
    assert journal.has_room() is has_room


def test_of_what_a_netdev_takes_along_the_rules_and_what_stays_are_kept(record: SandboxRecord) -> None:
    rule = RoutingRule(version=4, priority=9, table=100, source=ip_network("10.0.0.1/32"))
    kept = Inherited(rules=(rule,), left_out=("the route 10.0.0.0/8: it covers the service range",))
    (move,) = record.plan.moves
    whole = replace(kept, addresses=(Brought(thing=move.link.addresses[0]),), sysctls=(("ipv4/conf/rp_filter", "2"),))
    read = decode_record(encode_record(_with(record, whole)), where="memory")
    assert read == _with(record, kept)


def test_a_record_in_which_nothing_of_it_is_needed_is_as_the_version_before_wrote_it(record: SandboxRecord) -> None:
    text = encode_record(_with(record, Inherited(sysctls=(("ipv4/conf/rp_filter", "2"),)))).decode()
    assert text == encode_record(record).decode()
    assert not [word for word in ("inherit", "takes") if word in text]


def _with(record: SandboxRecord, inherited: Inherited) -> SandboxRecord:
    (move,) = record.plan.moves
    return replace(record, plan=replace(record.plan, moves=(replace(move, inherited=inherited),)))

"""A JSON document that somebody gives to a command: a saved node or trace is read, or refused completely."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nri_rdma.commands.common.node_file import read_document
from nri_rdma.commands.trace.tracefile import read_trace
from nri_rdma.errors import SettingError
from tests.unit.commands.cli.documents import JSON, JSON_WORDS, NODE, SPAN
from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.golden import assert_as_before
from tests.unit.rigs.bad_input import assert_complete, in_time


def test_a_file_without_end_is_refused() -> None:
    assert "is larger than" in assert_one_error(nri_rdma("inventory", "--snapshot", "/dev/zero"), "SETTING", 2)


SNAPSHOTS: tuple[tuple[str, bytes], ...] = (
    ("nothing", b""),
    ("no UTF-8", b"\xff"),
    ("no JSON", b"devices: []"),
    ("a list", b"[]"),
    ("brackets without end", b"[" * 100_000),
    ("a number without end", b'{"version": ' + b"9" * 5000 + b"}"),
    ("too large", b" " * ((16 << 20) + 1)),
    ("another version", b'{"version": 2}'),
    ("no version", b"{}"),
    ("no devices", b'{"version": 1}'),
    ("devices of no kind", json.dumps({**NODE, "devices": {}}).encode()),
    ("a device of no kind", json.dumps({**NODE, "devices": [1]}).encode()),
    ("a device without anything", json.dumps({**NODE, "devices": [{}]}).encode()),
    ("a PCI address of no kind", json.dumps({**NODE, "devices": [{"pci": []}]}).encode()),
    ("a GPU without a place", json.dumps({**NODE, "gpus": [{"pci": "here"}]}).encode()),
    ("a namespace mode that is none", json.dumps({**NODE, "rdma_netns": "both"}).encode()),
    ("notes of no kind", json.dumps({**NODE, "notes": [1]}).encode()),
)
TRACES: tuple[tuple[str, bytes], ...] = (
    ("a trace without spans", b'{"version": 1}'),
    ("spans of no kind", b'{"version": 1, "spans": {}}'),
    ("a span without anything", b'{"version": 1, "spans": [{}]}'),
    ("a time of no kind", json.dumps({"version": 1, "spans": [{**SPAN, "start_ns": "now"}]}).encode()),
    ("a time that is none", json.dumps({"version": 1, "spans": [{**SPAN, "start_ns": -1}]}).encode()),
    ("an id twice", json.dumps({"version": 1, "spans": [SPAN, SPAN]}).encode()),
    ("its own parent", json.dumps({"version": 1, "spans": [{**SPAN, "parent_id": "a"}]}).encode()),
)


def saved_refusal(data: bytes, folder: Path, *, is_trace: bool = False) -> SettingError:
    path = folder / "saved.json"
    path.write_bytes(data)
    with pytest.raises(SettingError) as caught:
        read_trace(path) if is_trace else read_document(path)
    return caught.value


def test_refusals_of_saved_files_read_as_they_did(tmp_path: Path) -> None:
    told = [(title, saved_refusal(data, tmp_path)) for title, data in SNAPSHOTS]
    told += [(title, saved_refusal(data, tmp_path, is_trace=True)) for title, data in TRACES]
    for _, error in told:
        assert_complete(error)
    assert_as_before("saved.txt", ((title, str(it).replace(f"{tmp_path}/", "")) for title, it in told))


def test_the_least_snapshot_is_one(tmp_path: Path) -> None:
    """Else the refusals above might be of something else."""
    (tmp_path / "saved.json").write_text(json.dumps(NODE))
    assert read_document(tmp_path / "saved.json")[0].devices == ()
    (tmp_path / "saved.json").write_text(json.dumps({"version": 1, "spans": [SPAN]}))
    assert read_trace(tmp_path / "saved.json")["spans"] == [SPAN]


@settings(in_time, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(JSON_WORDS, JSON, max_size=6).map(lambda document: {**document, "version": 1}))
def test_any_document_is_a_node_and_spans_or_complete_refusals(tmp_path: Path, document: dict[str, object]) -> None:
    (tmp_path / "saved.json").write_text(json.dumps(document))
    for read in (read_document, read_trace):
        try:
            read(tmp_path / "saved.json")
        except SettingError as error:
            assert_complete(error)

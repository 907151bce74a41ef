"""A node's document is read back, and what lacks something is refused."""

import json
from pathlib import Path

import pytest

from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.commands.cli.snapshots import inventory


def test_it_is_the_document_of_inventory(eight: Path, saved: Path) -> None:
    document = json.loads(saved.read_text())
    del document["notes"][0]  # where and when it was saved
    assert document == inventory("--sysfs-root", eight)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is no JSON: "),
        ("\0\xff", "it is no JSON: "),
        ("[" * 100_000, "it is no JSON: "),
        ("[]", "it is no JSON object"),
        ("{}", "its version is None instead of 1"),
        ('{"version": 2}', "its version is 2 instead of 1"),
        ('{"version": 1}', "the document describes no node: 'devices'"),
        ('{"version": 1, "devices": 1, "gpus": []}', "the document describes no node: "),
        ('{"version": 1, "devices": [{"pci": 1}], "gpus": []}', "the document describes no node: "),
    ],
)
def test_a_file_that_is_no_snapshot_is_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_bytes(text.encode("latin-1"))
    told = assert_one_error(nri_rdma("inventory", "--snapshot", file), "SETTING", 2)
    assert f"this is no snapshot of a node: {why}" in told
    assert f", {file}. Next: save one with `nri-rdma snapshot -o FILE`, of this version." in told


@pytest.mark.parametrize("key", ["devices", "gpus", "rdma_netns", "rdma_cgroup", "rdma_cm"])
def test_a_snapshot_that_lacks_something_is_refused(key: str, saved: Path) -> None:
    document = json.loads(saved.read_text())
    del document[key]
    saved.write_text(json.dumps(document))
    assert_one_error(nri_rdma("inventory", "--snapshot", saved), "SETTING", 2)


def test_notes_of_another_kind_are_refused(saved: Path) -> None:
    saved.write_text(json.dumps({**json.loads(saved.read_text()), "notes": [1]}))
    assert_one_error(nri_rdma("inventory", "--snapshot", saved), "SETTING", 2)

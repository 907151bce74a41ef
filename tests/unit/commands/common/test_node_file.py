"""A node's document is read back, and what lacks something is refused."""

import json
from pathlib import Path

import pytest

from tests.unit.commands.cli.program import assert_one_error, nri_rdma


def test_a_file_that_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_text('{"version": 2}')
    told = assert_one_error(nri_rdma("inventory", "--snapshot", file), "SETTING", 2)
    assert "this is no snapshot of a node: its version is 2 instead of 1" in told
    assert f", {file}. Next: save one with `nri-rdma snapshot -o FILE`, of this version." in told


@pytest.mark.parametrize("key", ["devices", "gpus", "rdma_netns", "rdma_cgroup", "rdma_cm"])
def test_a_snapshot_that_lacks_something_is_refused(key: str, saved: Path) -> None:
    document = json.loads(saved.read_text())
    del document[key]
    saved.write_text(json.dumps(document))
    assert_one_error(nri_rdma("inventory", "--snapshot", saved), "SETTING", 2)

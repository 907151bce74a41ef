"""The CDI devices that `install podman` makes are in a file of its own, and those of others stay."""

from pathlib import Path

import pytest

from nri_rdma.commands.cdi.cdi_devices import FILE, cdi_file, made_by_others
from nri_rdma.commands.common.changes import to_remove
from nri_rdma.errors import NriRdmaError
from nri_rdma.host.cdi.folder import read_registry

OTHERS = """{"cdiVersion": "0.3.0", "kind": "%s",
 "devices": [{"name": "mlx5_0", "containerEdits": {"deviceNodes": [{"path": "/dev/infiniband/uverbs0"}]}}]}"""
NIC = "rdma.noderesource.dev/nic"


@pytest.mark.parametrize(("kind", "file", "found"), [
    (NIC, "mine.json", True), (NIC, FILE, False), (f"{NIC}-rails", "mine.json", False), ("a.b/nic", "mine.json", False),
])  # fmt: skip
def test_devices_of_the_same_names_in_another_file_are_found(tmp_path: Path, kind: str, file: str, found: bool) -> None:
    (tmp_path / file).write_text(OTHERS % kind)
    assert made_by_others(read_registry((tmp_path,)), tmp_path) == (str(tmp_path / file) if found else "")


@pytest.mark.parametrize("text", ["no json", "[]", OTHERS % NIC])
def test_a_file_in_its_place_that_somebody_else_made_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(NriRdmaError, match="not made by nri-rdma"):
        to_remove([cdi_file(tmp_path, None)])

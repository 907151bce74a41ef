"""Nodes and policies survive their documents, and documents without them are refused."""

import json
from pathlib import Path

import pytest

from nri_rdma.commands.common.local_node import read_local_node
from nri_rdma.config.settings import Document, Settings, load
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.control.node_document import node_document, node_from, policy_document, policy_from
from nri_rdma.errors import NotReadyError
from tests.rig.node import load as load_node
from tests.rig.systree import build_tree
from tests.unit.rigs.inside_daemon import InsideDaemon

PROJECT = Path(__file__).resolve().parents[4]


def test_a_node_with_virtual_functions_survives_its_document(tmp_path: Path) -> None:
    build_tree(load_node("vf8"), tmp_path)
    node = read_local_node(Settings(sysfs_root=tmp_path, dev_root=tmp_path, cgroup_root=tmp_path)).node
    document = json.loads(json.dumps(node_document(node)))
    assert node_from(document) == node
    assert document["devices"][2]["virtual"] == {"pf": "0000:41:00.0", "number": 0, "pf_netdevs": ["ens1f0"]}


def test_a_node_survives_its_document(daemon: InsideDaemon) -> None:
    assert node_from(node_document(daemon.node)) == daemon.node
    assert node_from(ask_status(daemon.settings.control_path)) == daemon.node


@pytest.mark.parametrize("document", [{}, {"devices": [{}], "gpus": []}, {"devices": 3, "gpus": []}])
def test_a_document_without_a_node_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(NotReadyError):
        node_from(document)


def test_a_policy_survives_its_document() -> None:
    text = (PROJECT / "docs/examples/pools.toml").read_text()
    settings = load({}, {}, Document(name="FILE", text=text)).settings
    handlers = ("kata*", "runsc")
    policy = policy_of(settings.pools, settings.rules, allow_default_pool=False, sandboxed_handlers=handlers)
    assert policy_from({"policy": json.loads(json.dumps(policy_document(policy)))}) == policy


def test_a_document_without_a_policy_is_refused() -> None:
    with pytest.raises(NotReadyError, match="the document has no policy"):
        policy_from({})

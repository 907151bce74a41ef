"""One cluster for each module of tests; only for who has namespaces of its own (python -m tests.cluster)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.leaks import RUN

collect_ignore_glob = [] if RUN in os.environ else ["test_*.py"]


_LONGEST_S = 600.0
"""Of a test that does not say how long it may take: pods may have to wait for the kubelet's next attempt."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests here their time."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LONGEST_S))


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of one node, or of as many as the module's NODES says; its DESCRIBED is the nodes' hardware, its CONFIG
    nri-rdma's configuration, its KUBELET has settings of the kubelets, its GATES are feature gates that are on, and its
    IMAGES are archives that the nodes have instead of a daemon of their own."""
    failed = request.session.testsfailed
    made = Cluster(
        getattr(request.module, "NODES", 1),
        described=getattr(request.module, "DESCRIBED", "eight"),
        config=getattr(request.module, "CONFIG", ""),
        kubelet=getattr(request.module, "KUBELET", {}),
        gates=getattr(request.module, "GATES", ()),
        images=getattr(request.module, "IMAGES", ()),
    )
    try:
        yield made
    finally:
        made.close(keeps_logs=request.session.testsfailed > failed)

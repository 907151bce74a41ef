"""helm for the tests here; only for who asked for them (python -m tests.chart)."""

import os

from tests.rig.cache import CACHE

RUN = "NRI_RDMA_HELM"
"""The environment's variable with the path of helm, which python -m tests.chart sets."""
SCHEMAS = CACHE / "kubernetes-validate"
collect_ignore_glob = [] if RUN in os.environ else ["test_*.py"]

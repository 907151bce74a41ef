"""Keeps the guest's tests out of a run on the host."""

import os

collect_ignore: list[str] = [] if "RDMA_LAB_RESULTS" in os.environ else ["guest"]

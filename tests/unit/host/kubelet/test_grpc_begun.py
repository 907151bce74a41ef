"""grpc that was begun in time lives on where the process has no descriptor left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[4]
CALL = """
import os, resource
from nri_rdma.host.kubelet.grpc_begun import begin_grpc
channel = begin_grpc()
used = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1, used - 1))
import grpc
try:
    grpc.insecure_channel("unix:/nowhere").unary_unary("/a/b")(b"", timeout=5)
except grpc.RpcError as error:
    print(error.code())
"""


def test_without_a_descriptor_a_call_fails_and_the_process_does_not() -> None:
    done = subprocess.run([sys.executable, "-c", CALL], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "StatusCode.UNAVAILABLE\n")

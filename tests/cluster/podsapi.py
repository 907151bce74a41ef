"""Prints whether the kubelet's PodsAPI tells of texts, as JSON: `python -m tests.cluster.podsapi TEXT...`.

Its pods are Kubernetes' own in protobuf, in which texts stand as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc

SOCKET = Path("/var/lib/kubelet/pods-api/pods-api.sock")


def main() -> None:
    """Ask, and print which of the texts are in the answer."""
    with grpc.insecure_channel(f"unix:{SOCKET}", options=[("grpc.default_authority", "localhost")]) as channel:
        answer: bytes = channel.unary_unary("/v1alpha1.Pods/ListPods")(b"", timeout=10)
    print(json.dumps({text: text.encode() in answer for text in sys.argv[1:]}))


if __name__ == "__main__":
    main()

"""A driver of claims whose one device several claims share: `python -m tests.cluster.share_driver KUBECONFIG`.

It answers each claim with the device and share that the scheduler allocated, which it asks the API server for. Protobuf
is written by hand: none of it comes from the product.
"""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.cluster.bare_driver import serve_driver
from tests.rig.kubelet import fields, message, text

NAME = "shares.example"


def main() -> None:
    """Serve until SIGTERM."""
    config = json.loads(Path(sys.argv[1]).read_text())
    serve_driver(NAME, _answering(config))


def share_slice(node: str) -> dict[str, Any]:
    """The ResourceSlice with a device of capacity 4, of which a claim has 2."""
    capacity = {"parts": {"value": "4", "requestPolicy": {"default": "2", "validRange": {"min": "2", "step": "2"}}}}
    device = {"name": "d0", "allowMultipleAllocations": True, "capacity": capacity}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NAME, "nodeName": node, "pool": pool, "devices": [device]}
    kind = "ResourceSlice"
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "shares"}, "spec": spec}


def _answering(config: dict[str, Any]) -> Callable[[bytes], bytes]:
    return lambda request: b"".join(
        message(1, text(1, dict(fields(claim))[_UID].decode()) + message(2, _devices(config, claim)))
        for _, claim in fields(request)
    )


def _devices(config: dict[str, Any], claim: bytes) -> bytes:
    named = dict(fields(claim))
    path = f"/apis/resource.k8s.io/v1/namespaces/{named[1].decode()}/resourceclaims/{named[_NAME].decode()}"
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    request = Request(f"{config['clusters'][0]['cluster']['server']}{path}", headers=headers)
    with urlopen(request, context=trusting) as answer:
        status = json.load(answer)["status"]
    results = [it for it in status["allocation"]["devices"]["results"] if it["driver"] == NAME]
    return b"".join(
        message(1, text(1, it["request"]) + text(2, it["pool"]) + text(3, it["device"]) + text(5, it["shareID"]))
        for it in results
    )


_UID, _NAME = 2, 3

if __name__ == "__main__":
    main()

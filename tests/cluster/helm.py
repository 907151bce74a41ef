"""The chart in a cluster, by the real helm, on nodes whose hardware is described."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: values of the chart

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.programs import ensure_helm
from tests.rig.cache import PROJECT

CHART = PROJECT / "deploy/helm/nri-rdma"
NAMESPACE = "nri-rdma"
RELEASE = "nri-rdma"
WAIT = "300s"
IMAGE_ARCHIVE = PROJECT / "build/nri-rdma-amd64.tar"
_MEMLOCK = 8388608
"""What a machine without CAP_SYS_RESOURCE may give."""


class Helm:
    """helm for a cluster, and the values that its nodes need."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._program = ensure_helm()
        self._home = cluster.folder / "helm"
        self._home.mkdir()

    def __call__(self, *arguments: str, fails: bool = False) -> str:
        """Run helm, and return what it printed. Raises ClusterError."""
        environment = {**os.environ, **self._cluster.environment, "HOME": str(self._home)}
        command = [str(self._program), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0 and not fails:
            raise ClusterError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout + (done.stderr if fails else "")

    def upgrade(self, values: Mapping[str, Any], *more: str, fails: bool = False, chart: Path = CHART) -> str:
        """Install the chart with these values, or upgrade to it, and wait until the daemons are ready."""
        file = self._home / "values.json"  # JSON is YAML
        file.write_text(json.dumps(self.for_nodes(values)))
        asked = ("upgrade", "--install", RELEASE, str(chart), "--namespace", NAMESPACE, "--create-namespace")
        how = ("--reset-values", "--values", str(file), "--wait", "--timeout", WAIT)
        return self(*asked, *how, *more, fails=fails)

    def roll_back(self) -> str:
        """Go back to the revision before, and wait until the daemons are ready."""
        return self("rollback", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", WAIT)

    def uninstall(self, *more: str) -> str:
        """Remove the release, and wait until its pods are gone."""
        return self("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", *more)

    def for_nodes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values with what nodes here need: their hardware is a folder, and they share /etc with the machine,
        and have no proxy for services."""
        host, port = self._cluster.api_server
        hardware = next(iter(self._cluster.nodes.values())).hardware
        roots = {f"NRI_RDMA_{name.upper()}_ROOT": path for name, path in hardware.items()}
        folder = os.path.commonpath(hardware.values())
        return {
            "image": {"repository": "localhost/nri-rdma", "pullPolicy": "Never"},
            "cdiDirs": ["/var/run/cdi"],
            "apiServer": {"host": host, "port": str(port)},
            "extraHostPaths": [folder],
            **values,
            "env": {**roots, **values.get("env", {})},
            "config": {"memlock": _MEMLOCK, "kubelet_wait": 1, **values.get("config", {})},
        }

    def daemon(self, *arguments: str, node: str = "n1", fails: bool = False) -> str:
        """Run a command of nri-rdma in the daemon's pod of a node."""
        selector = "--selector=app.kubernetes.io/component=daemon"
        found = self._cluster.get("pods", "-n", NAMESPACE, selector, f"--field-selector=spec.nodeName={node}")
        (name,) = (it["metadata"]["name"] for it in found["items"])
        command = ("exec", "-n", NAMESPACE, name, "-c", "nri-rdma", "--", "/opt/nri-rdma/bin/nri-rdma", *arguments)
        return self._cluster.kubectl(*command, fails=fails)

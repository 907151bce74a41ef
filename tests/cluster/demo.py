"""`make cluster-demo`: the chart is installed into a real Kubernetes, pods ask in three ways, and it is removed.

What each container sees is compared with what was asked for, and the node's NICs with what they were.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any  # Any: manifests

import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.helm import IMAGE_ARCHIVE, NAMESPACE, Helm
from tests.cluster.pods import execute, pod, start
from tests.rig.demo_page import Page

_GPU = "nvidia.com/gpu"
_POOLS = """\
config:
  pools:
    rails:                     # asked for by annotations
      select: {device: [mlx5_0, mlx5_1]}
      modes: [exclusive, shared]
    hcas-a:                    # counted by the kubelet as a resource
      select: {device: [mlx5_2, mlx5_3]}
      modes: [shared]
      door: resource
      resource: rdma/rdma_shared_device_a
      shares: 8
    hcas-b:
      select: {device: [mlx5_4, mlx5_5]}
      modes: [shared]
      door: resource
      resource: rdma/rdma_shared_device_b
      shares: 8
      gives: all
    nics:                      # allocated by the scheduler as claims
      select: {device: [mlx5_6, mlx5_7]}
      modes: [exclusive]
      door: claims
"""
_FOLDERS = ("/run/nri-rdma", "/run/cdi", "/var/lib/nri-rdma", "/var/lib/kubelet/plugins")
_RAY = {"rdma/rdma_shared_device_a": 1, "rdma/rdma_shared_device_b": 1, _GPU: 1}
"""What each pod of tests/cluster/raycluster.yaml asks for, but for the number of GPUs."""
_TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "nic"},
    "spec": {
        "spec": {
            "devices": {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": "nics"}}],
                "config": [
                    {
                        "opaque": {
                            "driver": "rdma.noderesource.dev",
                            "parameters": {"interface": {"name": "fab0", "mtu": 3000}},
                        }
                    }
                ],
            }
        }
    },
}


def main() -> int:
    """Tell the story on standard output; return 0 when every check passed."""
    page = Page(sys.stdout)
    page.heading("1. A cluster")
    with page.progress("Kubernetes, containerd, a node with 8 NICs and 8 GPUs"):
        cluster = Cluster(images=[IMAGE_ARCHIVE])
    with cluster:
        _tell(page, cluster)
        page.summary(f"{cluster.folder}/*/log")
    return 1 if page.failed else 0


def _tell(page: Page, cluster: Cluster) -> None:
    node, helm = cluster.nodes["n1"], Helm(cluster)
    node.start_gpus(_GPU)
    cluster.wait("the GPUs", lambda: cluster.get("node", "n1")["status"]["allocatable"].get(_GPU) == "8")
    before = _host(cluster)

    page.heading("2. helm install")
    page.block(_POOLS)
    with page.progress("helm install, until the daemons are ready"):
        helm.upgrade(yaml.safe_load(_POOLS))
    daemon = cluster.get("pods", "-n", NAMESPACE)["items"][0]["spec"]
    (container,) = daemon["containers"]
    context = container["securityContext"]
    page.table("the daemon's pod")
    page.check("capabilities", "SYS_ADMIN NET_ADMIN", " ".join(context["capabilities"]["add"]))
    page.check("root file system", "read-only", "read-only" if context["readOnlyRootFilesystem"] else "writable")
    page.check("privileged", "no", "yes" if context.get("privileged") else "no")
    with page.progress("devices, resources and DeviceClass in the cluster"):
        cluster.wait("shares and devices", lambda: _is_offered(cluster))

    page.heading("3. Pods ask")
    _ask(page, cluster, "an annotation", _annotated(), "rdma_cm uverbs0", "fab0 mtu 3000")
    for part in ("head", "worker"):
        share = pod(f"ray-{part}", containers=[{"resources": {"limits": _RAY}}])
        nodes = "rdma_cm uverbs[23] uverbs4 uverbs5"  # of the pool that gives one, the NIC next to its GPU
        _ask(page, cluster, f"KubeRay's {part}: shares and a GPU", share, nodes)
    cluster.kubectl("create", "-f", "-", given=_TEMPLATE)
    _ask(page, cluster, "a claim", _claiming(), "rdma_cm uverbs6", "fab0 mtu 3000")
    start(cluster, pod("plain"))
    page.table("plain: asks for nothing")
    page.check("device nodes", "", _nodes(cluster, "plain"))
    page.command("kubectl exec daemonset/nri-rdma-default -- nri-rdma status", helm.daemon("status"))

    page.heading("4. helm uninstall")
    names = [it["metadata"]["name"] for it in cluster.get("pods")["items"]]
    with page.progress("pods deleted"):
        cluster.kubectl("delete", "pod", "--all", "--wait=true", "--timeout=90s")
    with page.progress("helm uninstall, which clears the node first"):
        helm.uninstall()
    start(cluster, pod("after"))
    page.table(f"the node after {len(names)} pods", "before", "now")
    page.check("a plain pod", "Running", cluster.get("pod", "after")["status"]["phase"])
    cluster.kubectl("delete", "pod", "after", "--wait=true", "--timeout=60s")
    now = _host(cluster)
    left = cluster.get("resourceslices,deviceclasses")["items"]
    page.check("slices and classes", "", " ".join(it["metadata"]["name"] for it in left))
    for what, found in before.items():
        page.check(what, f"{len(found)}", f"{len(now[what])}", passed=found == now[what])


def _annotated() -> dict[str, Any]:
    asked = "[{pool: rails, mode: exclusive, interface: {name: fab0, mtu: 3000}}]"
    return pod("trainer", annotations={"rdma.noderesource.dev/pod": asked})


def _claiming() -> dict[str, Any]:
    containers = [{"resources": {"claims": [{"name": "rdma"}]}}]
    return pod("claimer", containers=containers, resourceClaims=[{"name": "rdma", "resourceClaimTemplateName": "nic"}])


def _ask(page: Page, cluster: Cluster, how: str, asked: dict[str, Any], nodes: str, netdev: str = "") -> None:
    """Start a pod, and compare what its container sees: the nodes in /dev/infiniband with a regular expression, and a
    netdev with its MTU."""
    name = asked["metadata"]["name"]
    with page.progress(f"{name}: {how}"):
        start(cluster, asked)
    page.table(name)
    found = _nodes(cluster, name)
    page.check("device nodes", nodes, found, passed=re.fullmatch(nodes, found) is not None)
    if netdev:
        name_of = netdev.partition(" ")[0]
        words = f"echo {name_of} mtu $(cat /sys/class/net/{name_of}/mtu)"
        page.check("its netdev", netdev, execute(cluster, name, words).strip())
    variables = execute(cluster, name, "env | grep ^RDMA_DEVICES | sort; true").split()
    for variable in variables:
        page.block(variable)


def _nodes(cluster: Cluster, name: str) -> str:
    return " ".join(execute(cluster, name, "ls /dev/infiniband 2>/dev/null; true").split())


def _is_offered(cluster: Cluster) -> bool:
    found = cluster.get("node", "n1")["status"]["allocatable"]
    resources = ("rdma/rdma_shared_device_a", "rdma/rdma_shared_device_b", "rdma.noderesource.dev/guard")
    return all(found.get(it, "0") != "0" for it in resources) and bool(cluster.get("resourceslices")["items"])


def _host(cluster: Cluster) -> dict[str, list[str]]:
    """Return what the node's own tools say of its NICs."""
    machine = cluster.nodes["n1"].machine
    links = [it for it in json.loads(machine.run("ip", "-j", "-d", "address")) if it["ifname"].startswith("rail")]
    addresses = [f"{it['ifname']} {at['local']}/{at['prefixlen']}" for it in links for at in it["addr_info"]]
    routes = machine.run("ip", "-o", "route", "show", "table", "all").splitlines()
    return {
        "NICs": [f"{it['ifname']} {it['address']} {it['mtu']} {it['operstate']}" for it in links],
        "addresses": sorted(addresses),
        "routes": sorted(it for it in routes if "rail" in it),
        "our files": machine.run("sh", "-c", f"find {' '.join(_FOLDERS)} ! -type d 2>/dev/null; true").split(),
    }

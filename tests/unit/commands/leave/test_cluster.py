"""The pods that clear a node are those of the daemon, but for what they do."""

from typing import Any

from nri_rdma.commands.leave.cluster import clearing

DAEMON: dict[str, Any] = {
    "name": "nri-rdma",
    "image": "registry/nri-rdma@sha256:0",
    "env": [{"name": "NRI_RDMA_STATE_DIR", "value": "/run/nri-rdma"}],
    "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}},
    "readinessProbe": {"httpGet": {"port": 9178}},
    "startupProbe": {"httpGet": {"port": 9178}},
    "volumeMounts": [
        {"name": "host-dir", "mountPath": "/var/lib/nri-rdma", "readOnly": True},
        {"name": "sys", "mountPath": "/sys", "readOnly": True},
    ],
}
DAEMONS = {"spec": {"template": {"spec": {"containers": [{"name": "sidecar"}, DAEMON], "initContainers": [{}]}}}}


def test_the_daemon_is_replaced_by_a_container_that_clears_the_node_first() -> None:
    spec = clearing(DAEMONS, "/var/lib/nri-rdma")["spec"]["template"]["spec"]
    (clears,), (waits,) = spec["initContainers"], spec["containers"]
    assert clears["args"] == ["uninstall", "node", "--host-dir", "/var/lib/nri-rdma"]
    assert {it["mountPath"]: it["readOnly"] for it in clears["volumeMounts"]} == {
        "/var/lib/nri-rdma": False,
        "/sys": True,
    }
    assert (clears["env"], clears["image"]) == (DAEMON["env"], DAEMON["image"])
    assert not [key for key in (*clears, *waits) if key.endswith("Probe")]
    assert "volumeMounts" not in waits
    assert DAEMON["volumeMounts"][0]["readOnly"] is True, "the DaemonSet that was read is not changed"

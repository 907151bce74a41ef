"""`nri-rdma uninstall kubernetes` and `uninstall node` as they are typed; what they do: tests/unit/commands/leave."""

from __future__ import annotations

from pathlib import Path

from tests.rig.api_server import running, send
from tests.unit.commands.cli.program import assert_one_error, nri_rdma


def test_a_cluster_without_daemons_has_nothing_to_clear(tmp_path: Path) -> None:
    with running() as server:
        server.answer = lambda handler, _seen: send(handler, 200, {"items": []})
        config = str(server.kubeconfig(tmp_path))
        done = nri_rdma("uninstall", "kubernetes", "--namespace", "rdma", "--kubeconfig", config)
        asked = {it.path for it in server.seen}
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "/apis/apps/v1/namespaces/rdma/daemonsets" in asked
    assert server.writes == []


def test_outside_of_a_pod_without_credentials_the_error_says_so() -> None:
    done = nri_rdma("uninstall", "kubernetes", "--namespace", "rdma")
    line = assert_one_error(done, "API-SERVER", 1)
    assert "credentials (--kubeconfig; in a pod its service account)" in line
    assert "it is tried again" not in line, "this command tries once"


def test_a_node_is_cleared(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("state", "cdi", "device-plugins", "plugins", "nri")}
    for path in folders.values():
        path.mkdir(mode=0o700)
    (folders["cdi"] / "rdma.noderesource.dev-claim-1.json").write_text("{}")
    done = nri_rdma(
        *("uninstall", "node", "--state-dir", str(folders["state"]), "--cdi-dirs", str(folders["cdi"])),
        *("--device-plugin-dir", str(folders["device-plugins"]), "--kubelet-plugins-dir", str(folders["plugins"])),
        *("--nri-socket", str(folders["nri"] / "nri.sock")),
    )
    assert done.returncode == 0, done.stderr
    assert "rdma.noderesource.dev-claim-1.json" in done.stdout
    assert [it for it in tmp_path.rglob("*") if not it.is_dir()] == []

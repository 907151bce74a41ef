"""The chart as helm renders it: right for each Kubernetes, and strict about what people write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any  # Any: manifests

import click
import kubernetes_validate  # type: ignore[import-not-found]  # fetched by tests.chart
import pytest
import yaml

from deploy.chart import MANIFESTS, manifests
from nri_rdma.commands.install.guard_cli import install_containerd, install_crio
from tests.chart.conftest import RUN
from tests.rig.cache import PROJECT

CHART = PROJECT / "deploy/helm/nri-rdma"
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
CLAIMS = "resource.k8s.io/v1/DeviceClass"
POLICIES = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
PREFLIGHT = {"preflight": True}
MONITORS = "monitoring.coreos.com/v1/PodMonitor"
NAMESPACE = "rdma"
KINDS: Mapping[str, Any] = {
    "config": {"memlock": 8388608, "kubelet_wait": 0.5},
    "nodes": [
        {
            "name": "hopper",
            "nodeSelector": {"nvidia.com/gpu.product": "H100"},
            "config": {
                "pools": {"rails": {"select": {"pfName": ["ens1f0#0-3"]}, "modes": ["exclusive"]}},
                "rules": [{"pools": ["rails"], "namespaces": ["ml-*"]}],
            },
        },
        {
            "name": "blackwell",
            "nodeSelector": {"nvidia.com/gpu.product": "B200"},
            "config": {
                "memlock": "unlimited",
                "pools": {"nics": {"select": {"vendor": "15b3"}, "modes": ["exclusive", "shared"], "door": "claims"}},
            },
        },
        {
            "name": "storage",
            "nodeSelector": {"role": "storage"},
            "config": {
                "pools": {
                    "a": {
                        "modes": ["shared"],
                        "door": "resource",
                        "resource": "rdma/rdma_shared_device_a",
                        "shares": 64,
                        "limits": {"hcaHandles": 100, "hcaObjects": 1000},
                    }
                }
            },
        },
    ],
}
ALL: Mapping[str, Any] = {
    **KINDS,
    "image": {"repository": "registry.example/nri-rdma", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "metrics": {"address": "[::]:9178", "podMonitor": True, "podMonitorLabels": {"release": "prometheus"}},
    "env": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
    "affinity": {"nodeAffinity": {}},
    "podLabels": {"team": "net"},
    "podAnnotations": {"why": "because"},
    "apiServer": {"host": "192.0.2.1", "port": "6443"},
    "appArmorProfile": {"type": "Unconfined"},
    "seLinuxOptions": {"type": "spc_t"},
    "containerdSocket": "/run/k3s/containerd/containerd.sock",
    "kubeletRootDir": "/var/lib/k0s/kubelet",
    "namespace": {"create": True},
    "extraHostPaths": ["/srv/nodes"],
}


def helm(*arguments: str, values: Mapping[str, Any] | None = None, fails: bool = False) -> str:
    """Run helm, and return what it printed; with `fails`, what it said when it failed."""
    command = [os.environ[RUN], *arguments, *(["--values", "-"] if values is not None else [])]
    given = None if values is None else json.dumps(values)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def rendered(values: Mapping[str, Any], version: str = "1.37", apis: Sequence[str] | None = None) -> list[Any]:
    """Return the manifests, as helm makes them for a cluster of a version."""
    has = apis if apis is not None else [CLAIMS, MONITORS, *([POLICIES] if version >= "1.36" else [])]
    asked = ["template", "nri-rdma", str(CHART), "--namespace", NAMESPACE, "--kube-version", version]
    text = helm(*asked, *(word for api in has for word in ("--api-versions", api)), values=values)
    return [it for it in yaml.safe_load_all(text) if it is not None]


def of_kind(manifests: Sequence[Any], kind: str) -> dict[str, Any]:
    """Return the manifests of a kind by their names."""
    return {it["metadata"]["name"]: it for it in manifests if it["kind"] == kind}


def test_lint_has_no_complaint() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values",
    [{}, KINDS, ALL, {**ALL, **PREFLIGHT}],
    ids=["defaults", "three kinds of nodes", "all values", "preflight"],
)
def test_every_manifest_is_one_of_that_kubernetes(version: str, values: Mapping[str, Any]) -> None:
    found = [it for it in rendered(values, version) if it["kind"] != "PodMonitor"]  # of another project
    for manifest in found:
        kubernetes_validate.validate(manifest, version, strict=True)
    assert "DaemonSet" in {it["kind"] for it in found}


def test_the_check_of_manifests_sees_a_misspelt_key() -> None:
    (daemon,) = of_kind(rendered({}), "DaemonSet").values()
    daemon["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="hostPid"):
        kubernetes_validate.validate(daemon, "1.37", strict=True)


def test_each_kind_of_node_has_its_daemons_and_its_configuration() -> None:
    found = rendered(KINDS)
    daemons, files = of_kind(found, "DaemonSet"), of_kind(found, "ConfigMap")
    kinds = {f"nri-rdma-{it['name']}": it for it in KINDS["nodes"]}
    assert set(daemons) == set(files) == set(kinds)
    for name, kind in kinds.items():
        selector = daemons[name]["spec"]["template"]["spec"]["nodeSelector"]
        assert selector == {"kubernetes.io/os": "linux", **kind["nodeSelector"]}
        assert tomllib.loads(files[name]["data"]["config.toml"]) == KINDS["config"] | kind["config"]
    selectors = [it["spec"]["selector"]["matchLabels"] for it in daemons.values()]
    assert len({json.dumps(it) for it in selectors}) == 3
    assert list(of_kind(found, "DeviceClass")) == ["nics"]


def test_a_changed_configuration_restarts_the_daemons_of_its_kind_only() -> None:
    changed = json.loads(json.dumps(KINDS))
    changed["nodes"][0]["config"]["pools"]["rails"]["modes"] = ["shared"]
    before, after = (of_kind(rendered(it), "DaemonSet") for it in (KINDS, changed))
    differing = {name for name in before if before[name]["spec"]["template"] != after[name]["spec"]["template"]}
    assert differing == {"nri-rdma-hopper"}


def test_a_daemon_is_asked_whether_it_is_ready_and_never_restarted_for_that() -> None:
    (daemon,) = of_kind(rendered({"metrics": {"address": "[::]:9000"}}), "DaemonSet").values()
    (container,) = daemon["spec"]["template"]["spec"]["containers"]
    assert [key for key in container if key.endswith("Probe")] == ["readinessProbe"]
    assert container["readinessProbe"]["httpGet"] == {"host": "127.0.0.1", "port": 9000, "path": "/healthz"}
    assert container["ports"] == [{"name": "metrics", "containerPort": 9000}]


def test_a_name_of_digits_is_a_name() -> None:
    (daemon,) = of_kind(rendered({"nodes": [{"name": "100"}]}), "DaemonSet").values()
    assert daemon["spec"]["selector"]["matchLabels"]["nri-rdma/nodes"] == "100"


def test_daemons_without_claims_have_no_rights_in_the_cluster() -> None:
    found = rendered({})
    (daemon,) = of_kind(found, "DaemonSet").values()
    spec = daemon["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert list(of_kind(found, "ClusterRole")) == ["nri-rdma-uninstall"]  # of the hook before a removal
    mounted = {it["mountPath"] for it in spec["containers"][0]["volumeMounts"]}
    assert "/var/lib/kubelet/device-plugins" in mounted
    assert "/var/lib/kubelet" not in mounted


def test_only_daemons_of_nodes_with_claims_have_a_token_and_the_kubelets_folder() -> None:
    daemons = of_kind(rendered(KINDS), "DaemonSet")
    specs = {name.rpartition("-")[2]: it["spec"]["template"]["spec"] for name, it in daemons.items()}
    mounts = {name: {it["mountPath"] for it in spec["containers"][0]["volumeMounts"]} for name, spec in specs.items()}
    assert [name for name, spec in specs.items() if spec["automountServiceAccountToken"]] == ["blackwell"]
    assert [name for name, paths in mounts.items() if "/var/lib/kubelet" in paths] == ["blackwell"]


def test_every_kinds_configuration_is_one_that_the_daemon_serves(tmp_path: Path) -> None:
    for name, it in of_kind(rendered(ALL), "ConfigMap").items():
        (tmp_path / name).write_text(it["data"]["config.toml"])
        command = [sys.executable, "-m", "nri_rdma", "config", "check", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
        assert done.returncode == 0, done.stderr


def test_the_images_own_program_is_not_hidden_by_the_folder_of_the_host_before_an_install() -> None:
    daemons = of_kind(rendered({**PREFLIGHT, "hostDir": "/opt/nri-rdma"}), "DaemonSet")
    paths = {
        it["mountPath"]
        for it in daemons["nri-rdma-preflight-default"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    }
    assert "/opt/nri-rdma" not in paths


def test_the_daemon_has_two_capabilities_and_nothing_of_its_own_to_write() -> None:
    for daemon in of_kind(rendered(ALL), "DaemonSet").values():
        spec = daemon["spec"]["template"]["spec"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["initContainers"], *spec["containers"]):
            context = container["securityContext"]
            assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
            assert context["capabilities"]["drop"] == ["ALL"]
        assert spec["containers"][0]["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN", "NET_ADMIN"]
        assert spec["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_daemon_that_may_prove_sees_other_processes_and_the_nodes_of_devices() -> None:
    for daemon in of_kind(rendered({**ALL, "prove": True}), "DaemonSet").values():
        spec = daemon["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"]
        assert {"name": "infiniband", "mountPath": "/dev/infiniband"} in container["volumeMounts"]


def test_only_a_daemon_with_a_kubeconfig_may_write_its_ca_to_a_file() -> None:
    config = {"kubeconfig": "/srv/nodes/kubeconfig"}
    daemons = of_kind(rendered({**ALL, "nodes": [{"name": "a", "config": config}, {"name": "b"}]}), "DaemonSet")
    for daemon, has in ((daemons["nri-rdma-a"], 1), (daemons["nri-rdma-b"], 0)):
        spec = daemon["spec"]["template"]["spec"]
        assert spec["containers"][0]["volumeMounts"].count({"name": "tmp", "mountPath": "/tmp"}) == has
        assert spec["volumes"].count({"name": "tmp", "emptyDir": {"medium": "Memory"}}) == has


def test_preflight_runs_doctor_where_and_as_the_daemons_will_run_before_anything_else_is_made() -> None:
    found = rendered({**KINDS, **PREFLIGHT})
    hooks = [it for it in found if "preflight" in it["metadata"]["name"]]
    assert [it for it in found if it not in hooks] == rendered(KINDS)
    for hook in hooks:
        told = hook["metadata"]["annotations"]
        assert told["helm.sh/hook"] == "pre-install,pre-upgrade"
        gone = "before-hook-creation" + ("" if hook["kind"] == "Job" else ",hook-succeeded,hook-failed")
        assert told["helm.sh/hook-delete-policy"] == gone
    daemons, files = of_kind(found, "DaemonSet"), of_kind(found, "ConfigMap")
    for kind in KINDS["nodes"]:
        mine, theirs = (daemons[f"nri-rdma-{it}{kind['name']}"] for it in ("preflight-", ""))
        assert files[f"nri-rdma-preflight-{kind['name']}"]["data"] == files[f"nri-rdma-{kind['name']}"]["data"]
        spec, daemon = (it["spec"]["template"]["spec"] for it in (mine, theirs))
        assert {key for key in daemon if spec.get(key) != daemon[key]} <= {
            *("containers", "initContainers", "serviceAccountName", "automountServiceAccountToken", "volumes")
        }
        (doctor,), (runs,) = spec["containers"], daemon["containers"]
        assert doctor["args"] == ["doctor", "-o", "json", "--stay"]
        changed = {key for key in doctor.keys() | runs if doctor.get(key) != runs.get(key)}
        assert changed == {"args", "env", "ports", "readinessProbe", "volumeMounts"}  # the host's folder: not there yet


def test_jobs_run_on_tainted_nodes_whose_taint_is_named_and_on_no_dead_node() -> None:
    addons = {"key": "CriticalAddonsOnly", "operator": "Exists"}
    jobs = of_kind(rendered({**PREFLIGHT, "tolerations": [{"operator": "Exists"}, addons]}), "Job")
    assert set(jobs) == {"nri-rdma-preflight", "nri-rdma-uninstall"}
    for job in jobs.values():
        control_plane = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
        assert job["spec"]["template"]["spec"]["tolerations"] == [control_plane, addons]


@pytest.mark.parametrize(("guard", "without"), [("resource", ["daemon", "guard"]), ("runtime", ["daemon"])])
def test_what_the_chart_brings_is_no_problem_before_it_is_installed(guard: str, without: list[str]) -> None:
    job = of_kind(rendered({"guard": guard, **PREFLIGHT}), "Job")["nri-rdma-preflight"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    asked = [word for check in without for word in ("--without", check)]
    assert container["args"] == ["preflight", "--namespace", NAMESPACE, *asked]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"imge": {}}, "additional properties 'imge' not allowed"),
        ({"image": {"repository": "x", "digest": "sha256:0"}}, "/image/digest"),
        ({"config": {"pools": {"a": {"modes": ["shared"], "slect": {}}}}}, "'slect' not allowed"),
        ({"config": {"pools": {"a": {"modes": ["exclusiv"]}}}}, "/config/pools/a/modes/0"),
        ({"config": {"metrics_address": "[::]:1"}}, "'metrics_address' not allowed"),
        ({"nodes": [{"name": "a", "config": {"memlok": 1}}]}, "'memlok' not allowed"),
        ({"nodes": [{"name": "a", "nodeSelectors": {}}]}, "'nodeSelectors' not allowed"),
        ({"nodes": []}, "minItems"),
        ({"guard": "on"}, "/guard"),
        ({"preflight": "yes"}, "/preflight"),
        ({"metrics": {"address": ""}}, "/metrics/address"),
        ({"metrics": {"podMonitor": True}}, "metrics.podMonitor needs an address that Prometheus reaches"),
        ({"env": {"PATH": "/"}}, "invalid propertyName 'PATH'"),
        ({"env": {"NRI_RDMA_LOG_LEVLE": "debug"}}, "invalid propertyName 'NRI_RDMA_LOG_LEVLE'"),
        ({"env": {"NRI_RDMA_ADOPT": "enforce"}}, "invalid propertyName 'NRI_RDMA_ADOPT'"),
        ({**KINDS, "config": {"rules": [{"pools": ["rails"]}]}}, "nodes blackwell: a rule names the pool rails"),
        ({"config": {"pools": {"a": {"select": {"vendor": "15b3"}}}}}, "pool a has no modes"),
        ({"kubeletRootDir": "var/lib"}, "/kubeletRootDir"),
        ({"hostDir": "/srv/x/"}, "/hostDir"),
        ({"containerdSocket": "/run/containerd.sock"}, "/containerdSocket"),
        ({"annotationPrefix": "a.b/c"}, "/annotationPrefix"),
        ({"metrics": {"address": ":9178"}}, "/metrics/address"),
        ({"env": {"NRI_RDMA_METRICS_ADDRESS": "[::]:1"}}, "invalid propertyName 'NRI_RDMA_METRICS_ADDRESS'"),
        ({"config": {"state_dir": "/var/lib/x"}}, "'state_dir' not allowed"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, "/updateStrategy/rollingUpdate/maxSurge"),
        ({"podLabels": {"nri-rdma/nodes": "x"}}, "invalid propertyName 'nri-rdma/nodes'"),
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, "two kinds have the name a"),
        (
            {**PREFLIGHT, "nodes": [{"name": "a"}, {"name": "preflight-a"}]},
            "the kind preflight-a has the name of the objects",
        ),
        ({"config": {"pools": {"Big": {"modes": ["shared"], "door": "claims"}}}}, "pool Big: with door = claims"),
        ({"extraHostPaths": ["/etc/cdi"]}, "two values mount /etc/cdi"),
        ({"nriSocket": "/run/containerd/nri.sock"}, "two values mount /run/containerd"),
    ],
)
def test_a_typo_is_refused_by_its_place(values: Mapping[str, Any], words: str) -> None:
    assert words in helm("template", "nri-rdma", str(CHART), values=values, fails=True)


@pytest.mark.parametrize(("version", "expected"), [("1.35", []), ("1.36", ["nri-rdma-guard"])])
def test_the_guards_policy_is_made_where_the_cluster_has_them(version: str, expected: list[str]) -> None:
    found = rendered({}, version)
    assert list(of_kind(found, "MutatingAdmissionPolicy")) == expected
    assert list(of_kind(found, "MutatingAdmissionPolicyBinding")) == expected


@pytest.mark.parametrize(
    ("values", "command", "flags"),
    [
        (
            {"annotationPrefix": "a.example", "kubeletRootDir": "/srv/kube", "containerdSocket": "/run/k0s/c.sock"},
            install_containerd,
            "--annotation-prefix a.example --kubelet-plugins-dir /srv/kube/plugins --containerd-socket /run/k0s/c.sock",
        ),
        (
            {"containerdSocket": ""},
            install_crio,
            "--annotation-prefix rdma.noderesource.dev --kubelet-plugins-dir /var/lib/kubelet/plugins",
        ),
    ],
    ids=["containerd", "CRI-O"],
)
def test_the_notes_have_the_command_that_sets_up_the_guard_of_these_values(
    values: Mapping[str, Any], command: click.Command, flags: str
) -> None:
    asked = ["install", "nri-rdma", str(CHART), "--dry-run=client"]  # `helm template` prints no notes
    notes = helm(*asked, values={**values, "guard": "runtime"}).partition("NOTES:")[2]
    (told,) = (line.strip() for line in notes.splitlines() if line.strip().startswith("nri-rdma install"))
    assert told == f"nri-rdma install {command.name} {flags}"
    command.make_context("it", flags.split())  # it has these flags


@pytest.mark.parametrize(("version", "expected"), [("1.33", []), ("1.34", ["nics"])])
def test_device_classes_are_made_where_the_cluster_has_them(version: str, expected: list[str]) -> None:
    found = rendered(KINDS, version, apis=[CLAIMS] if version == "1.34" else [])
    assert list(of_kind(found, "DeviceClass")) == expected


@pytest.mark.parametrize(
    ("version", "apis", "expected"),
    [
        ("1.33", [], ([], [])),
        ("1.35", [], (["nics"], [])),
        ("1.36", [], (["nics"], ["nri-rdma-guard"])),
        ("v1.36.1-eks-1", [], (["nics"], ["nri-rdma-guard"])),
        ("1.37", ["v1/Pod"], ([], [])),
    ],
    ids=["1.33", "1.35", "1.36", "of a provider", "a cluster that has neither"],
)
def test_who_renders_the_chart_without_a_cluster_has_what_that_version_of_kubernetes_has(
    version: str, apis: Sequence[str], expected: tuple[list[str], list[str]]
) -> None:
    found = rendered(KINDS, version, apis)
    assert (list(of_kind(found, "DeviceClass")), list(of_kind(found, "MutatingAdmissionPolicy"))) == expected


def test_the_manifests_for_who_has_no_helm_are_those_of_the_chart() -> None:
    assert MANIFESTS.read_text() == manifests(os.environ[RUN]), (
        f"run `python -m deploy.chart --manifests {os.environ[RUN]}`, which writes it anew"
    )

"""`python -m deploy.chart` writes what of the chart follows from the daemon's own code: the rights and policies that
`nri-rdma claims manifests` prints, and the schema of `config` in the values.

With `--manifests HELM` it writes what this helm makes of the chart, for who has none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any  # Any: a JSON document

import yaml

from nri_rdma.commands.claims.guard_manifests import guard_manifests
from nri_rdma.commands.claims.manifests import Manifest, claims_manifests
from nri_rdma.config.schema import config_schema
from nri_rdma.config.settings import ENVIRONMENT_PREFIX, Settings
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode

CHART = Path(__file__).resolve().parent / "helm/nri-rdma"
VALUES_DECIDE = frozenset(
    {
        "nri_socket",
        "annotation_prefix",
        "containerd_socket",
        "kubelet_socket",
        "device_plugin_dir",
        "kubelet_plugins_dir",
        "cdi_dirs",
        "dev_root",
        "metrics_address",
        "guard_hook",
        "guard_resource",
        "node_name",
        "node_ip",
        "state_dir",
        "control_socket",
    }
)
"""Settings that the chart decides: as variables of the daemon, which count before its configuration file, or by what it
mounts."""
_OTHER_VARIABLES = "^(OTEL|GRPC|HTTP|HTTPS|NO)_[A-Z0-9_]+$"
MANIFESTS = CHART.parents[1] / "kustomize/nri-rdma.yaml"
_APIS = (
    "resource.k8s.io/v1/DeviceClass",
    "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
)
_HEAD = "{{- /* `make generate` writes this file. */}}\n"
_LABELS, _NAMESPACE, _POOL, _PREFIX = "the-labels", "the-namespace", "the-pool", "the.prefix"
_TEMPLATES = {
    _LABELS: '{{- include "nri-rdma.labels" $ | nindent 4 }}',
    _NAMESPACE: "{{ $.Release.Namespace }}",
    _POOL: "{{ . }}",
    _PREFIX: "{{ $.Values.annotationPrefix }}",
}
_CLAIM_POOLS = 'include "nri-rdma.claimPools" . | fromJsonArray'
_HAS_CLASSES = 'include "nri-rdma.hasClasses" .'
_IS_GUARDED = 'and (eq .Values.guard "resource") (include "nri-rdma.hasPolicies" .)'


def generated() -> Mapping[Path, str]:
    """Return the text of each generated file."""
    schema = CHART / "values.schema.json"
    return {
        schema: _values_schema(json.loads(schema.read_text())),
        CHART / "templates/claims.yaml": _HEAD + _claims(),
        CHART / "templates/guard.yaml": _HEAD + _guard(),
    }


def _claims() -> str:
    """Return what daemons need that serve claims. The service account is there without claims, too."""
    account, *rights, device_class = claims_manifests([_pool()], _NAMESPACE)
    each = f"{{{{- range {_CLAIM_POOLS} }}}}\n{_text([device_class])}{{{{- end }}}}"
    classes = f"{{{{- if {_HAS_CLASSES} }}}}{each}{{{{- end }}}}\n"
    return f"{_text([account])}{{{{- if {_CLAIM_POOLS} }}}}\n{_text(rights)}{classes}{{{{- end }}}}\n"


def _guard() -> str:
    resource = f"{_PREFIX}/guard"
    policies = _text(guard_manifests(resource, _PREFIX, has_claims=True))
    with_claims, without = (_condition(resource, has_claims=it) for it in (True, False))
    chosen = f"{without}{{{{ if {_CLAIM_POOLS} }}}}{with_claims.removeprefix(without)}{{{{ end }}}}"
    policies = policies.replace(_filled(with_claims), _filled(chosen))
    return f"{{{{- if {_IS_GUARDED} }}}}\n{policies}{{{{- end }}}}\n"


def _condition(resource: str, *, has_claims: bool) -> str:
    """Return when a pod gets the guard resource; with claims the condition is the longer one of the two."""
    policy, _binding = guard_manifests(resource, _PREFIX, has_claims=has_claims)
    found: str = policy["spec"]["matchConditions"][0]["expression"]
    return found


def _pool() -> Pool:
    return Pool(name=_POOL, modes=(Mode.SHARED,), door=PoolDoor.CLAIMS)


def _text(manifests: Iterable[Manifest]) -> str:
    labelled = ({**it, "metadata": {**it["metadata"], "labels": _LABELS}} for it in manifests)
    return _filled("".join(f"---\n{yaml.safe_dump(it, sort_keys=False, width=1000)}" for it in labelled))


def _filled(text: str) -> str:
    for name, template in _TEMPLATES.items():
        text = text.replace(name, template)
    return text


def _values_schema(schema: dict[str, Any]) -> str:
    """Return the schema of the values, with that of the configuration. A kind of node may have a part of a pool."""
    config = config_schema()
    definitions = config.pop("$defs")
    del config["$schema"], config["title"], definitions["pool"]["required"]
    config["properties"] = {name: it for name, it in config["properties"].items() if name not in VALUES_DECIDE}
    taken = VALUES_DECIDE - {"dev_root"}  # simulated nodes have another one
    free = (it.name for it in fields(Settings) if it.name not in taken and not it.metadata.get("table"))
    variables = sorted(f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in free)
    schema["properties"]["env"]["propertyNames"] = {"anyOf": [{"enum": variables}, {"pattern": _OTHER_VARIABLES}]}
    schema["$defs"] |= {"config": config, **definitions}
    return json.dumps(schema, indent=2) + "\n"


def manifests(helm: str) -> str:
    """Return what helm makes of the chart with its default values, and a namespace, for Kubernetes 1.36 and later."""
    chart = [helm, "template", "nri-rdma", str(CHART), "--namespace", "nri-rdma", "--no-hooks"]
    how = ["--set", "namespace.create=true", *(word for api in _APIS for word in ("--api-versions", api))]
    done = subprocess.run([*chart, *how], capture_output=True, text=True, check=True)
    return f"# `python -m deploy.chart --manifests HELM` writes this file.\n{done.stdout}"


def main(arguments: list[str]) -> None:
    """Write the files."""
    if arguments[:1] == ["--manifests"]:
        MANIFESTS.write_text(manifests(arguments[1]))
        return
    for path, text in generated().items():
        path.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])

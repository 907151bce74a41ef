"""etcd, kube-apiserver, kube-scheduler and kube-controller-manager in a machine of their own."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.machine import Machine
from tests.cluster.programs import Programs

PORT = 6443
SERVICES = "198.19.0.0/24"
_NODE = "system:node:"
_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "daemonset-controller",
    "deployment-controller",
    "device-taint-eviction-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
)


class ControlPlane:
    """The control plane at an address. Users are known by tokens; the API server makes its own certificate."""

    def __init__(
        self, machine: Machine, programs: Programs, address: str, nodes: tuple[str, ...], gates: Sequence[str] = ()
    ) -> None:
        """`gates` are feature gates that are on in all of its programs, with the APIs that they need."""
        self._gates = {"feature_gates": ",".join(f"{it}=true" for it in gates)} if gates else {}
        self._machine = machine
        self._programs = programs
        self._address = address
        self._pki = machine.folder / "pki"
        self._pki.mkdir()
        users = {"admin": ("admin", "system:masters"), "scheduler": ("system:kube-scheduler", "")}
        users["controllers"] = ("system:kube-controller-manager", "")
        users |= {node: (f"{_NODE}{node}", "system:nodes") for node in nodes}
        tokens = {name: secrets.token_hex(16) for name in users}
        rows = [f'{tokens[name]},{user},{name},"{group}"' for name, (user, group) in users.items()]
        (self._pki / "tokens.csv").write_text("\n".join(rows) + "\n")
        for name, token in tokens.items():
            self.kubeconfig(name).write_text(json.dumps(self._client(token)))  # JSON is YAML
        self._key = self._pki / "accounts.key"
        _openssl("genrsa", "-out", self._key, "2048")
        _openssl("rsa", "-in", self._key, "-pubout", "-out", self._public)

    @property
    def _public(self) -> Path:
        return self._key.with_suffix(".pub")

    def kubeconfig(self, user: str) -> Path:
        """Return the file with which a user or a node (by its name) reaches the API server."""
        return self._machine.folder / f"{user}.kubeconfig"

    def start(self) -> None:
        """Start all four; they wait for each other."""
        self._start(
            "etcd",
            data_dir="/var/lib/etcd",
            listen_client_urls="http://127.0.0.1:2379",
            advertise_client_urls="http://127.0.0.1:2379",
            listen_peer_urls="http://127.0.0.1:2380",
            unsafe_no_fsync="true",
            log_level="warn",
        )
        self._start(
            "kube-apiserver",
            etcd_servers="http://127.0.0.1:2379",
            bind_address="0.0.0.0",
            secure_port=str(PORT),
            advertise_address=self._address,
            cert_dir=str(self._pki),
            token_auth_file=str(self._pki / "tokens.csv"),
            authorization_mode="Node,RBAC",
            enable_admission_plugins="NodeRestriction",
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=str(self._public),
            service_account_signing_key_file=str(self._key),
            service_cluster_ip_range=SERVICES,
            allow_privileged="true",
            kubelet_preferred_address_types="InternalIP",  # for exec: no DNS knows the nodes' names
            **self._gates,
            **({"runtime_config": "api/beta=true"} if self._gates else {}),
        )

    def start_controllers(self) -> None:
        """Start what acts on the API server, once that is there: its certificate is theirs to check it by."""
        self._start(
            "kube-scheduler",
            kubeconfig=str(self.kubeconfig("scheduler")),
            leader_elect="false",
            secure_port="0",
            **self._gates,
        )
        self._start(
            "kube-controller-manager",
            kubeconfig=str(self.kubeconfig("controllers")),
            leader_elect="false",
            secure_port="0",
            use_service_account_credentials="true",
            service_account_private_key_file=str(self._key),
            root_ca_file=str(self._pki / "apiserver.crt"),
            controllers=",".join(_CONTROLLERS),
            **self._gates,
        )

    def _start(self, program: str, **flags: str) -> None:
        options = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        self._machine.start(program, self._programs[program], *options)

    def _client(self, token: str) -> Mapping[str, object]:
        server = {
            "server": f"https://{self._address}:{PORT}",
            "certificate-authority": str(self._pki / "apiserver.crt"),
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": server}],
            "users": [{"name": "it", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

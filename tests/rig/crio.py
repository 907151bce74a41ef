"""CRI-O, as a private runtime of the rig: tests/rig/build_runtimes.py builds it."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.rig import cache
from tests.rig.collector import Collector
from tests.rig.image import IMAGE, PAUSE
from tests.rig.runtime import SANDBOXED, Runtime

_quoted = json.dumps  # a JSON string is a TOML basic string
_CAPABILITIES = [
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW"),
    *("SETGID", "SETPCAP", "SETUID"),
]
"""Of containers: CRI-O's own, and MKNOD and NET_RAW, which containerd's have and tests use."""
_ANY_IMAGE = {"default": [{"type": "insecureAcceptAnything"}]}


class Crio(Runtime):
    """CRI-O with conmon and the rig's runc; storage, sockets and what it pins are below the rig's own folders."""

    def __init__(self, work: Path, *, release: cache.Release, collector: Collector | None = None) -> None:
        super().__init__(work, release)
        self._collector = collector
        for folder in ("attach", "exits", "hooks", "logs", "pinned", "storage"):
            (self.run / folder).mkdir()
        (self.run / "policy.json").write_text(json.dumps(_ANY_IMAGE))
        (self.run / "registries.conf").write_text("")
        (self.run / "storage.conf").write_text(self._storage_toml())
        self._record.config.write_text(self._toml())

    def command(self) -> tuple[str, ...]:
        """crio with its configuration, and no folder of further ones."""
        return (str(self.release.server), "--config", str(self._record.config), "--config-dir", "")

    def environment(self) -> Mapping[str, str]:
        """A PATH, and the files that the machine's own /etc/containers would otherwise give. Its configuration says
        where spans go, OpenTelemetry's variables how often."""
        return {
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "CONTAINERS_STORAGE_CONF": str(self.run / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.run / "registries.conf"),
        }

    def import_image(self, archive: Path) -> None:
        """With CRI-O's own copyimg, below a /var/lib of its own: it keeps a cache there, whatever it is told."""
        places = ("--root", str(self._record.root), "--runroot", str(self.run / "storage"))
        policy = ("--signature-policy", str(self.run / "policy.json"))
        image = ("--image-name", IMAGE, "--import-from", f"oci-archive:{archive}")
        copy = (str(self.release.folder / "copyimg"), *places, *policy, "--storage-driver", "overlay", *image)
        alone = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /var/lib && exec "$@"', "-")
        done = subprocess.run((*alone, *copy), env=self.environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"copyimg refused the image: {done.stderr.strip()}")

    def _storage_toml(self) -> str:
        return f"""[storage]
driver = "overlay"
graphroot = {_quoted(str(self._record.root))}
runroot = {_quoted(str(self.run / "storage"))}
"""

    def _toml(self) -> str:
        run = self.run
        return f"""[crio]
root = {_quoted(str(self._record.root))}
runroot = {_quoted(str(run / "storage"))}
storage_driver = "overlay"
log_dir = {_quoted(str(run / "logs"))}
version_file = {_quoted(str(run / "version"))}
version_file_persist = ""
clean_shutdown_file = {_quoted(str(run / "clean"))}
[crio.api]
listen = {_quoted(str(self.cri_address))}
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = {_quoted(str(self.release.folder / "pinns"))}
namespaces_dir = {_quoted(str(run / "pinned"))}
hooks_dir = [{_quoted(str(run / "hooks"))}]
cdi_spec_dirs = [{_quoted(str(self.cdi_dir))}]
container_exits_dir = {_quoted(str(run / "exits"))}
container_attach_socket_dir = {_quoted(str(run / "attach"))}
apparmor_profile = "unconfined"
default_capabilities = {_quoted(_CAPABILITIES)}
disable_hostport_mapping = true
irqbalance_config_restore_file = "disable"
{self._handler("runc")}{self._handler(SANDBOXED)}[crio.image]
pause_image = {_quoted(IMAGE)}
pause_command = {_quoted(PAUSE)}
signature_policy = {_quoted(str(run / "policy.json"))}
signature_policy_dir = {_quoted(str(run / "policies"))}
namespaced_auth_dir = {_quoted(str(run / "auth"))}
[crio.network]
network_dir = {_quoted(str(run / "net.d"))}
plugin_dirs = [{_quoted(str(cache.CNI_PLUGINS))}]
[crio.nri]
enable_nri = true
nri_listen = {_quoted(str(self.nri_socket))}
nri_plugin_dir = {_quoted(str(run / "nri-plugins"))}
nri_plugin_config_dir = {_quoted(str(run / "nri-conf"))}
{self._tracing()}"""

    def _handler(self, name: str) -> str:
        return f"""[crio.runtime.runtimes.{name}]
runtime_path = {_quoted(str(cache.RUNC))}
runtime_root = {_quoted(str(self.run / "runc"))}
monitor_path = {_quoted(str(self.release.folder / "conmon"))}
monitor_cgroup = "pod"
"""

    def _tracing(self) -> str:
        if self._collector is None:
            return ""
        return f"""[crio.tracing]
enable_tracing = true
tracing_endpoint = {_quoted(self._collector.address)}
tracing_sampling_rate_per_million = 1000000
"""

"""The configuration of the rig's containerd, as each of its releases writes it."""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.rig import cache
from tests.rig.guard import GUARDED
from tests.rig.image import IMAGE
from tests.rig.runtime import SANDBOXED

_quoted = json.dumps  # a JSON string is a TOML basic string

# What no test uses and costs time at the start, or makes folders outside the rig (internal.v1.opt: /opt/containerd).
_UNUSED = """\
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
{}]"""
_TRACING = """\
  "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
"""

# Else a namespace that was made just before a kill, with nothing in it yet, could not be told from another runtime's.
_NETNS = "netns_mounts_under_state_dir = true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What differs between two rigs of one release; `runtime_toml` goes into the table of the runtime `runc`,
    `guarded_spec` is the OCI configuration of the runtime handler `guarded`."""

    run: Path
    root: Path
    state: Path
    address: Path
    snapshotter: str
    restrict_oom_score_adj: bool
    runtime_toml: str
    nri_request_timeout: str
    required_plugins: tuple[str, ...]
    guarded_spec: Path
    reads_cdi: bool = True
    """False: as containerd 1.7 is without a configuration."""
    collector: str = ""
    """The address of a receiver of OTLP over grpc; "": no spans are recorded."""


def containerd_toml(release: cache.Release, choices: Choices) -> str:
    """The whole file: version 2 for 1.x, version 3 for 2.x."""
    if release.name.startswith("containerd-1."):
        return _version_2(choices)
    cni = _quoted(str(cache.CNI_PLUGINS))
    return _version_3(choices, f"bin_dir = {cni}" if release.name == "containerd-2.0" else f"bin_dirs = [{cni}]")


def _version_2(choices: Choices) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
{_places(choices)}
[{cri}]
sandbox_image = {_quoted(IMAGE)}
enable_cdi = {str(choices.reads_cdi).lower()}
{_cri(choices)}
[{cri}.cni]
bin_dir = {_quoted(str(cache.CNI_PLUGINS))}
conf_dir = {_quoted(str(choices.run / "net.d"))}
[{cri}.containerd]
snapshotter = {_quoted(choices.snapshotter)}
{_runc(cri, choices)}
{_nri(choices)}
{_tracing(choices)}
"""


def _version_3(choices: Choices, plugins: str) -> str:
    cri, images = 'plugins."io.containerd.cri.v1.runtime"', 'plugins."io.containerd.cri.v1.images"'
    return f"""version = 3
{_places(choices)}
[{images}.pinned_images]
sandbox = {_quoted(IMAGE)}
[{images}]
snapshotter = {_quoted(choices.snapshotter)}
[{cri}]
enable_cdi = {str(choices.reads_cdi).lower()}
{_cri(choices)}
[{cri}.cni]
{plugins}
conf_dir = {_quoted(str(choices.run / "net.d"))}
{_runc(cri, choices)}
{_nri(choices)}
"""


def _places(choices: Choices) -> str:
    return f"""root = {_quoted(str(choices.root))}
state = {_quoted(str(choices.state))}
{_UNUSED.format("" if choices.collector else _TRACING)}
[grpc]
address = {_quoted(str(choices.address))}"""


def _cri(choices: Choices) -> str:
    return f"""restrict_oom_score_adj = {str(choices.restrict_oom_score_adj).lower()}
{_NETNS}
cdi_spec_dirs = [{_quoted(str(choices.run / "cdi"))}]"""


def _runc(cri: str, choices: Choices) -> str:
    guard = f"""base_runtime_spec = {_quoted(str(choices.guarded_spec))}
pod_annotations = ["rdma.noderesource.dev", "rdma.noderesource.dev/*"]"""
    handlers = (("runc", choices.runtime_toml), (GUARDED, guard), (SANDBOXED, ""))
    return "\n".join(_handler(cri, name, choices, more) for name, more in handlers)


def _handler(cri: str, name: str, choices: Choices, more: str) -> str:
    return f"""[{cri}.containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
{more}
[{cri}.containerd.runtimes.{name}.options]
BinaryName = {_quoted(str(cache.RUNC))}
Root = {_quoted(str(choices.run / "runc"))}"""


def _nri(choices: Choices) -> str:
    timeout = choices.nri_request_timeout
    validator = """
[plugins."io.containerd.nri.v1.nri".default_validator]
enable = true
required_plugins = """
    required = f"{validator}{_quoted(choices.required_plugins)}" if choices.required_plugins else ""
    return f"""[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = {_quoted(str(choices.run / "nri.sock"))}
plugin_path = {_quoted(str(choices.run / "nri-plugins"))}
plugin_config_path = {_quoted(str(choices.run / "nri-conf"))}
{f"plugin_request_timeout = {_quoted(timeout)}" if timeout else ""}{required}"""


def _tracing(choices: Choices) -> str:
    """For 1.7; 2.x takes OpenTelemetry's variables only, and warns of these keys."""
    return (
        f"""[plugins."io.containerd.tracing.processor.v1.otlp"]
endpoint = {_quoted(choices.collector)}
protocol = "grpc"
insecure = true
[plugins."io.containerd.internal.v1.tracing"]
service_name = "containerd"
sampling_ratio = 1.0"""
        if choices.collector
        else ""
    )

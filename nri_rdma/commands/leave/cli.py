"""`nri-rdma uninstall kubernetes` and `uninstall node`: end the chart's daemons and remove everything that they wrote
on the nodes."""

from __future__ import annotations

from pathlib import Path

import click

from nri_rdma.commands.common.options import annotation_prefix_option, settings_options
from nri_rdma.config.settings import Settings

_HINT = (
    "see that the API server runs, and that the credentials (--kubeconfig; in a pod its service account) have the"
    " rights, and uninstall again"
)


@click.command(name="kubernetes")
@click.option("--namespace", required=True, metavar="NAME", help="Where the DaemonSets are.")
@click.option("--resource", "resources", multiple=True, metavar="PREFIX/NAME", help="An extended resource of ours.")
@click.option("--host-dir", default="", metavar="DIR", help="The chart's folder on each node, which is removed, too.")
@click.option("--timeout", default=180.0, show_default=True, metavar="SECONDS", help="For all nodes together.")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="File with the credentials; default: the service account of the pod.",
)
@annotation_prefix_option
def uninstall_kubernetes(
    namespace: str,
    resources: tuple[str, ...],
    host_dir: str,
    timeout: float,
    kubeconfig: Path | None,
    annotation_prefix: str,
) -> None:
    """Clear all nodes of a cluster before the chart is removed. `helm uninstall` does this itself, in a Job.

    While pods have devices, the command changes nothing and ends with an error that names them. Otherwise it ends each
    daemon, removes what the daemon has written on its node, and deletes the ResourceSlices. From then on, pods with
    annotations start without devices.

    \b
    Example:
      nri-rdma uninstall kubernetes --namespace nri-rdma --host-dir /var/lib/nri-rdma --kubeconfig ~/.kube/config
    """
    from nri_rdma.commands.common.cluster import api_server
    from nri_rdma.commands.leave.cluster import leave_cluster

    with api_server(kubeconfig, _HINT) as api:
        leave_cluster(api, namespace, annotation_prefix, resources, host_dir, timeout, click.echo)


@click.command(name="node")
@settings_options("state_dir", "nri_socket", "cdi_dirs", "device_plugin_dir", "kubelet_plugins_dir")
@click.option("--host-dir", type=click.Path(path_type=Path), metavar="DIR", help="The chart's folder on this node.")
def uninstall_node(settings: Settings, host_dir: Path | None) -> None:
    """Remove what the daemon has written on this node: its state, CDI specs and sockets for the kubelet.

    Refused while a daemon runs, and while a pod has devices.

    \b
    Example:
      nri-rdma uninstall node
    """
    from nri_rdma.commands.leave.node import leave_node

    for removed in leave_node(settings, host_dir):
        click.echo(f"removed {removed}")

"""`nri-rdma claims`: prints the Kubernetes objects for the pools that pods request by a ResourceClaim (`door =
"claims"`), and for the guard resource.

The guard resource is an extended resource that only adds the guard: an OCI hook that keeps a container from starting
without its devices.
"""

from __future__ import annotations

import click

from nri_rdma.commands.common.options import loaded_options
from nri_rdma.config.settings import Loaded
from nri_rdma.errors import ErrorCode, SettingError


@click.group(invoke_without_command=True)
@click.pass_context
def claims(context: click.Context) -> None:
    """Print what a cluster needs so that pods can request devices by ResourceClaims.

    \b
    Example:
      nri-rdma claims manifests | kubectl apply -f -
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@claims.command()
@loaded_options()
@click.option(
    "--namespace", default="kube-system", show_default=True, help="Namespace of the daemons' service account."
)
def manifests(loaded: Loaded, namespace: str) -> None:
    """Print the manifests for the pools with door = claims: service account, rights, and a DeviceClass per pool.

    A DeviceClass has the name of its pool. An admission policy lets a daemon write only the ResourceSlices of its own
    node. Needs neither root, nor a daemon, nor the cluster.

    With the setting guard_resource, an admission policy is printed even without such pools. It adds this resource, and
    with it the guard (the OCI hook that keeps a container from starting without its devices), to pods with our
    annotations, and to pods with a claim that none of their containers names (Kubernetes 1.36 and later).

    \b
    Example:
      nri-rdma claims manifests --config /etc/nri-rdma/config.toml | kubectl apply -f -
    """
    import yaml

    from nri_rdma.commands.claims.guard_manifests import guard_manifests
    from nri_rdma.commands.claims.manifests import claims_manifests
    from nri_rdma.model.pool import PoolDoor

    pools, resource = loaded.settings.pools, loaded.settings.guard_resource
    has_claims = any(pool.door is PoolDoor.CLAIMS for pool in pools)
    if not has_claims and not resource:
        raise SettingError(
            ErrorCode.SETTING,
            "no pool of this configuration has door = claims, and guard_resource is empty",
            where="pools",
            hint='write door = "claims" into a pool, or name the file with --config',
        )
    found = claims_manifests(pools, namespace) if has_claims else []
    if resource:
        found += guard_manifests(resource, loaded.settings.annotation_prefix, has_claims=has_claims)
    click.echo(yaml.safe_dump_all(found, sort_keys=False, width=1000), nl=False)

"""Alternative names of links, through pyroute2.

They are changed when a pod gave its netdev one that the host has, and so next to never: pyroute2 is imported then, and
costs a daemon that needs it not neither 28 ms of its start nor 6 MiB.
"""

from __future__ import annotations

from nri_rdma.attach.port import KernelError


def change_alt_names(ifindex: int, add: tuple[str, ...], remove: tuple[str, ...], operation: str) -> None:
    """Remove some, then add some, in the namespace of the calling thread. Raises KernelError."""
    from nri_rdma.host.netlink.lean import IPRoute, NetlinkError

    try:
        with IPRoute() as ip:
            for name in remove:
                ip.link("property_del", index=ifindex, altname=name)
            for name in add:
                ip.link("property_add", index=ifindex, altname=name)
    except NetlinkError as error:
        raise KernelError(operation, error.code, str(error.args[-1])) from error

"""What comes before an attach: look at the host and the pod, refuse what must be refused, decide.

Nothing on the host changes here. The kernel is asked, the decisions are plan.py's and inventory.py's.
"""

from __future__ import annotations

from nri_rdma.attach.plan import Plan, moving_netdevs, plan_attach
from nri_rdma.attach.port import Kernel, Namespace, Survey
from nri_rdma.attach.record import SandboxRecord, State
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.inject import AttachedDevice, AttachedRequest
from nri_rdma.inventory import in_use_reasons
from nri_rdma.model.device import CharDevice
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import Mode
from nri_rdma.placement import Placed


def open_for(kernel: Kernel, pod: Pod) -> Namespace:
    """The pod's namespace, held open. Raises PlacementError for a pod that has none of its own."""
    if not pod.netns_path:
        raise PlacementError(
            ErrorCode.NO_NETWORK_NAMESPACE,
            "the runtime names no network namespace for this pod",
            where=str(pod),
            hint="a pod with hostNetwork can only ask for mode: shared",
        )
    namespace = kernel.open_namespace(pod.netns_path)
    if namespace.is_host:
        namespace.close()
        raise PlacementError(
            ErrorCode.HOST_NETWORK,
            "this pod runs on the host's network: a netdev cannot be moved into it",
            where=str(pod),
            hint="ask for mode: shared, or take hostNetwork away",
        )
    return namespace


def prepare(
    kernel: Kernel, namespace: Namespace | None, pod: Pod, placed: tuple[Placed, ...], rdma_cm: CharDevice | None
) -> SandboxRecord:
    """The record of an attach that is about to begin; `namespace` is None when nothing moves."""
    survey = kernel.survey({netdev.ifindex for netdev in moving_netdevs(placed)})
    _refuse_use(placed, survey)
    plan = plan_attach(placed, survey.captured, kernel.links(namespace)) if namespace is not None else Plan()
    return SandboxRecord(
        pod=pod,
        state=State.ATTACHING,
        namespace=namespace.identity if namespace is not None else None,
        plan=plan,
        attached=attached_requests(placed, plan),
        rdma_cm=rdma_cm,
    )


def _refuse_use(placed: tuple[Placed, ...], survey: Survey) -> None:
    """What the host has come to use since the inventory was read is not given, shared as little as exclusively."""
    netdevs = {netdev.ifindex for item in placed for device in item.devices for netdev in device.netdevs}
    reasons = [
        reason
        for link in survey.links
        if link.ifindex in netdevs
        for reason in in_use_reasons(link, survey.links, survey.default_route_links)
    ]
    if reasons:
        raise PlacementError(
            ErrorCode.DEVICE_IN_USE,
            f"the host uses this device: {'; '.join(reasons)}",
            hint="free it on the host, or ask for another device",
        )


def attached_requests(placed: tuple[Placed, ...], plan: Plan) -> tuple[AttachedRequest, ...]:
    """What the pod will have, with the netdev names as they will be in it."""
    in_pod = {move.link.ifindex: move.pod_name for move in plan.moves}
    return tuple(
        AttachedRequest(
            admitted=item.admitted,
            devices=tuple(
                AttachedDevice(
                    device=device,
                    netdev_names=tuple(in_pod.get(netdev.ifindex, netdev.name) for netdev in device.netdevs)
                    if item.admitted.mode is Mode.EXCLUSIVE
                    else (),
                )
                for device in item.devices
            ),
        )
        for item in placed
    )

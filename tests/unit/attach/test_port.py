"""An error of the kernel says which call was refused and why; of several refusals the first one is raised."""

import errno

import pytest

from nri_rdma.attach.ops import SetLink
from nri_rdma.attach.port import KernelError, NamespaceError, Refused, explained, raise_first


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KernelError("move link", errno.EBUSY), "move link: EBUSY"),
        (KernelError("move link", errno.EBUSY, "rail0"), "move link: EBUSY (rail0)"),
        (KernelError("move link", 4095), "move link: 4095"),
    ],
)
def test_an_error_names_its_number_as_people_know_it(error: KernelError, words: str) -> None:
    assert str(error) == words


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOENT, errno.ENOTDIR])
def test_a_namespace_that_is_not_seen_names_the_folder_to_mount(number: int) -> None:
    refused = NamespaceError("enter the network namespace", number)
    error = explained(refused, device="mlx5_0", where="ml/train", path="/var/run/netns/cni-1")
    assert (error.errno, error.device) == (number, "mlx5_0")
    assert str(error) == (
        f"nri-rdma: ATTACH-FAILED: enter the network namespace: {errno.errorcode[number]} (mlx5_0), ml/train. Next: "
        "if the daemon runs in a container, mount /var/run/netns into it with mountPropagation: HostToContainer; "
        "otherwise the pod has ended, and the kubelet makes a new one."
    )


def test_a_namespace_of_a_process_that_is_not_seen_asks_for_the_hosts_processes() -> None:
    refused = NamespaceError("open the network namespace", errno.ENOENT)
    assert "hostPID: true" in explained(refused, device="d", where="w", path="/proc/7/ns/net").hint


def test_a_namespace_that_may_not_be_entered_names_the_capability_and_its_place() -> None:
    error = explained(NamespaceError("enter the network namespace", errno.EPERM), device="d", where="w", path="/n/x")
    assert str(error) == (
        "nri-rdma: PRIVILEGE: the daemon lacks CAP_SYS_ADMIN: enter the network namespace: EPERM (d), w. Next: add "
        "SYS_ADMIN to securityContext.capabilities of the daemon's container, or CAP_SYS_ADMIN to its unit."
    )


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (KernelError("move link", errno.EINVAL), "dmesg"),
        (NamespaceError("enter the network namespace", errno.EMFILE), "dmesg"),
    ],
)
def test_every_other_refusal_has_a_next_step_without_a_mount(refused: KernelError, words: str) -> None:
    error = explained(refused, device="d", where="w", path="/run/netns/x", what="move")
    assert str(error).startswith(f"nri-rdma: ATTACH-FAILED: move: {refused} (d), w. Next: ")
    assert (words in error.hint, "mount" in error.hint) == (True, False)


@pytest.mark.parametrize(
    ("operation", "number", "words"),
    [
        ("add route 192.0.2.0/24", errno.EEXIST, "the pod has a route to that network"),
        ("add route 192.0.2.0/24", errno.ENETUNREACH, "write an address whose network has the gateway"),
        ("add route 192.0.2.0/24", errno.EPERM, "give the daemon CAP_SYS_ADMIN"),
        ("add IPv6 rule 100", errno.EEXIST, "the pod has that rule"),
        ("add IPv6 rule 100", errno.EINVAL, "the kubelet tries again"),
        ("make VRF red", errno.EOPNOTSUPP, "load the module vrf on the node"),
    ],
)
def test_what_the_request_itself_is_refused_for_has_the_change_that_it_needs(
    operation: str, number: int, words: str
) -> None:
    assert explained(KernelError(operation, number), device="d", where="w").hint.startswith(words)


def test_the_first_of_several_refusals_is_raised() -> None:
    first, second = KernelError("set mtu", errno.EINVAL), KernelError("set up", errno.ENODEV)
    op = SetLink(up=True)
    with pytest.raises(KernelError) as caught:
        raise_first([Refused(op=op, error=first), Refused(op=op, error=second)])
    assert caught.value is first


def test_where_nothing_was_refused_nothing_is_raised() -> None:
    raise_first([])

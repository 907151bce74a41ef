"""What pods with NET_ADMIN do to their netdevs."""

from collections.abc import Callable
from ipaddress import ip_interface

from nri_rdma.attach.ops import SetFeatures, SetPrivateFlags, SetTuning
from nri_rdma.attach.port import Kernel, Namespace
from nri_rdma.model.link import STABLE_SECRET, features_of, tuning_of
from tests.rig.linkops import (
    add_address,
    apply,
    capture,
    rename_rdma,
    set_alt_names,
    set_link,
    set_settings,
    set_sysctls,
)

Meddling = Callable[[Kernel, Namespace, int], None]


def _rename(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    set_link(kernel, pod, ifindex, up=False)
    set_link(kernel, pod, ifindex, name="mine")


def _take_down(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    set_link(kernel, pod, ifindex, up=False)


def _new_mac(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    set_link(kernel, pod, ifindex, up=False)
    set_link(kernel, pod, ifindex, mac="02:aa:bb:cc:dd:ee")


def _new_numbers(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    set_link(kernel, pod, ifindex, mtu=1280, txqlen=7, alias="pods own")
    set_settings(
        kernel,
        pod,
        ifindex,
        (("flags", 0x12A0), ("linkmode", 1), ("broadcast", 0x77), ("group", 9), ("gso_max_size", 4096)),
    )


def _alt_name(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    set_alt_names(kernel, pod, ifindex, add=("uplink",), remove=())  # a name that the host has


def _no_alt_names(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    set_alt_names(kernel, pod, ifindex, add=(), remove=capture(kernel, pod, ifindex).alt_names)


def _addresses(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    for text in ("192.168.77.1/24", "fd77::1/64"):
        add_address(kernel, pod, ifindex, ip_interface(text))


def _sysctls(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    set_sysctls(
        kernel, pod, ifindex, (("ipv4/conf/rp_filter", "1"), ("ipv6/conf/accept_ra", "2"), (STABLE_SECRET, "fd77::7"))
    )


def _features(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    here = features_of(capture(kernel, pod, ifindex).features)
    apply(kernel, pod, ifindex, SetFeatures(features=tuple((name, not on) for name, on in here.items())))


def _tuning(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    here = tuning_of(capture(kernel, pod, ifindex).tuning)
    sizes = tuple((name, here[name] // 2 or 2) for name in ("ring rx", "channels rx") if name in here)
    if sizes:
        apply(kernel, pod, ifindex, SetTuning(sizes=sizes))


def _private_flags(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    here = features_of(capture(kernel, pod, ifindex).private_flags)
    if here:
        apply(kernel, pod, ifindex, SetPrivateFlags(flags=tuple((name, not on) for name, on in here.items())))


def _rename_rdma(kernel: Kernel, pod: Namespace, ifindex: int) -> None:
    for device in kernel.rdma_devices(pod):
        rename_rdma(kernel, pod, device.index, f"mine{device.index}")


MEDDLINGS: tuple[Meddling, ...] = (
    _rename,
    _take_down,
    _new_mac,
    _new_numbers,
    _alt_name,
    _no_alt_names,
    _addresses,
    _sysctls,
    _features,
    _tuning,
    _private_flags,
    _rename_rdma,
)

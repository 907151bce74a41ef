"""Links whose messages are longer than 64 KiB, or cannot be parsed: they keep no device from its way and hide no other
link. What a test sees comes from `ip -j`."""

import json
import logging
import subprocess

import pytest

from nri_rdma.attach.port import KernelError
from tests.contract.machines import HOST, POD, LinuxMachine
from tests.kernel.journey import Attach, add_veth

pytestmark = pytest.mark.root
NAMES = 495
"""The kernel takes 65,535 bytes of them, 132 for each of 127 characters, and checks before it adds one."""
SOURCES = 9_000


def _batch(linux: LinuxMachine, place: str, commands: list[str]) -> None:
    """Some of the last ones are refused once the kernel's limit is reached."""
    inside = ["nsenter", f"--net={linux.path(place)}", "ip", "-force", "-batch", "-"]
    subprocess.run(inside, input="\n".join(commands), text=True, capture_output=True, check=False)


def _add_many_names(linux: LinuxMachine, place: str, link: str) -> None:
    _batch(linux, place, [f"link property add dev {link} altname a{it:04d}{'z' * 122}" for it in range(NAMES)])
    (seen,) = json.loads(linux.ip(place, f"-j link show dev {link}"))
    assert len(seen["altnames"]) >= NAMES


def _add_unreadable(linux: LinuxMachine, place: str, lower: str) -> None:
    """A macvlan in source mode: the length of its addresses wraps at 64 KiB."""
    linux.ip(place, f"link add source0 link {lower} type macvlan mode source")
    set_one = "link set link dev source0 type macvlan macaddr add 02:00:00:00"
    _batch(linux, place, [f"{set_one}:{it >> 8:02x}:{it & 255:02x}" for it in range(SOURCES)])


def _numbers(linux: LinuxMachine, place: str = HOST) -> dict[str, int]:
    return {link["ifname"]: link["ifindex"] for link in json.loads(linux.ip(place, "-j link show"))}


def _attached(linux: LinuxMachine) -> Attach:
    add_veth(linux, "rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    return attach


def test_a_moved_link_comes_home_without_the_hundreds_of_names_that_its_pod_gave_it(linux: LinuxMachine) -> None:
    attach = _attached(linux)
    _add_many_names(linux, POD, "rdma0")
    attach.assert_home()


def test_names_of_any_bytes_stay_in_the_pod(linux: LinuxMachine) -> None:
    attach = _attached(linux)
    inside = ["nsenter", f"--net={linux.path(POD)}", "ip", "link", "property", "add", "dev", "rdma0", "altname"]
    subprocess.run([*inside, b"odd\xff\x1b"], check=True)
    attach.assert_home()


def test_a_link_comes_home_from_a_pod_whose_loopback_has_hundreds_of_names(linux: LinuxMachine) -> None:
    attach = _attached(linux)
    _add_many_names(linux, POD, "lo")
    attach.assert_home()


def test_a_link_comes_home_from_a_pod_with_a_link_that_cannot_be_parsed(linux: LinuxMachine) -> None:
    attach = _attached(linux)
    _add_unreadable(linux, POD, "rdma0")
    attach.assert_home()


def test_a_link_goes_and_comes_home_whatever_names_another_link_of_the_host_has(linux: LinuxMachine) -> None:
    linux.add_link("other0", "02:11:00:00:00:02")
    _add_many_names(linux, HOST, "other0")
    _assert_at_work(linux)


def test_a_link_goes_and_comes_home_beside_a_link_of_the_host_that_cannot_be_parsed(
    linux: LinuxMachine, caplog: pytest.LogCaptureFixture
) -> None:
    linux.add_link("other0", "02:11:00:00:00:02")
    _add_unreadable(linux, HOST, "other0")
    with caplog.at_level(logging.WARNING):
        _assert_at_work(linux)
        linux.kernel.host_use()
    warned = [record.__dict__["link"] for record in caplog.records if "cannot be parsed" in record.message]
    assert warned == ["source0"]  # once


def _assert_at_work(linux: LinuxMachine) -> None:
    """The node is read, a link goes to a pod and comes home."""
    attach = _attached(linux)
    kernel, there = attach.kernel, _numbers(linux)
    assert {link.name for link in kernel.host_use().links} == set(there)
    assert set(kernel.survey((there["other0"],)).links) == {there["other0"]}
    attach.assert_home()


def test_a_link_of_the_host_is_seen_to_have_a_child_that_cannot_be_parsed(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    _add_unreadable(linux, HOST, "rail0")
    there = _numbers(linux)
    kernel = linux.kernel
    for use in (kernel.host_use(("rail0",)), kernel.survey((there["rail0"],)).use):
        assert {link.name: link.lower for link in use.links}["source0"] == there["rail0"]


def test_a_link_that_cannot_be_parsed_is_not_given_away(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    _add_unreadable(linux, HOST, "rail0")
    kernel = linux.kernel
    kernel.host_use(("source0",))
    with pytest.raises(KernelError, match=r"EPROTO .*source0"):
        kernel.survey((_numbers(linux)["source0"],))

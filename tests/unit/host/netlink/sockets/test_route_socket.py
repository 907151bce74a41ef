"""Requests that go together, and the kernel's answers to each."""

import errno

import pytest

from nri_rdma.attach.ops import SetLink
from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links.link_state import change_request
from nri_rdma.host.netlink.namespaces.namespace import HeldNamespace
from nri_rdma.host.netlink.sockets.route_socket import REQUESTS_MAX, RouteSocket
from nri_rdma.wire.netlink import ERROR, HEADER, Message
from tests.contract.machines import LinuxMachine
from tests.rig.linkops import set_link

pytestmark = pytest.mark.root


@pytest.fixture
def host(linux: LinuxMachine) -> HeldNamespace:
    held = linux.kernel.host
    assert isinstance(held, HeldNamespace)
    return held


def test_the_kernels_own_words_are_told(linux: LinuxMachine, host: HeldNamespace) -> None:
    ifindex = linux.add_link("rail0", "02:11:00:00:00:01")
    with pytest.raises(
        KernelError, match=f"set link {ifindex}: mtu 10: EINVAL .mtu less than device minimum."
    ) as caught:
        set_link(linux.kernel, linux.kernel.host, ifindex, mtu=10)
    assert (caught.value.errno, caught.value.detail) == (errno.EINVAL, "mtu less than device minimum")


def test_more_requests_than_fit_in_one_datagram_are_all_done_in_order(linux: LinuxMachine, host: HeldNamespace) -> None:
    ifindex = linux.add_link("rail0", "02:11:00:00:00:01")
    requests = [change_request(ifindex, SetLink(mtu=1000 + number)) for number in range(3 * REQUESTS_MAX + 1)]
    host.ask(lambda route: route.do(*requests))
    assert linux.see()[ifindex].mtu == 1000 + 3 * REQUESTS_MAX


def test_the_first_refusal_is_told_and_a_later_request_is_done(linux: LinuxMachine, host: HeldNamespace) -> None:
    ifindex = linux.add_link("rail0", "02:11:00:00:00:01")
    requests = [
        change_request(ifindex, SetLink(mtu=1400)),
        change_request(4711, SetLink(mtu=1401)),
        change_request(ifindex, SetLink(mtu=10)),
        change_request(ifindex, SetLink(alias="left")),
    ]
    with pytest.raises(KernelError) as caught:
        host.ask(lambda route: route.do(*requests))
    assert caught.value.errno == errno.ENODEV
    assert (linux.see()[ifindex].mtu, linux.see()[ifindex].alias) == (1400, "left")


def test_a_link_whose_change_has_no_answer_is_an_error(host: HeldNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives none for a driver that was interrupted."""
    requests = [change_request(7, SetLink(mtu=1400)), change_request(7, SetLink(mtu=1500))]

    def ask(route: RouteSocket) -> dict[int, KernelError]:
        last = route._sequence + len(requests)
        answer = Message(ERROR, 0, last, HEADER.pack(36, ERROR, 0, last, 0) + bytes(20))
        monkeypatch.setattr(route, "_send", lambda *_: None)
        monkeypatch.setattr(route, "_receive", lambda _: [answer])
        return route.try_all(requests)

    (error,) = (errors := host.ask(ask)).values()
    assert (list(errors), error.errno) == ([0], errno.EINTR)
    assert "mtu 1400" in error.operation


def test_an_answer_that_nobody_waited_for_is_not_taken_for_anothers(linux: LinuxMachine, host: HeldNamespace) -> None:
    ifindex = linux.add_link("rail0", "02:11:00:00:00:01")

    def interrupt(route: RouteSocket) -> None:
        route._send("list links", b"\x10\0\0\0\x12\0\x01\x03\x63\0\0\0\0\0\0\0")  # a list, answered to 0x63
        route.do(change_request(ifindex, SetLink(mtu=1400)))

    host.ask(interrupt)
    assert linux.see()[ifindex].mtu == 1400


def test_a_refusal_that_nobody_waited_for_is_not_taken_for_anothers(linux: LinuxMachine, host: HeldNamespace) -> None:
    ifindex = linux.add_link("rail0", "02:11:00:00:00:01")

    def interrupt(route: RouteSocket) -> None:
        route._send("ask for nothing", b"\x10\0\0\0\xf0\xff\x05\0\x63\0\0\0\0\0\0\0")  # refused to 0x63
        route.do(change_request(ifindex, SetLink(mtu=1400)))

    host.ask(interrupt)
    assert linux.see()[ifindex].mtu == 1400


def test_any_bytes_in_a_name_or_an_alias_come_back_as_they_were(linux: LinuxMachine) -> None:
    ifindex = linux.add_link("rail0", "02:11:00:00:00:01")
    kernel = linux.kernel
    set_link(kernel, kernel.host, ifindex, name="r\udcff", alias="\udce4lias")
    (state,) = (link for link in kernel.links(kernel.host) if link.ifindex == ifindex)
    assert (state.name, state.alias) == ("r\udcff", "\udce4lias")

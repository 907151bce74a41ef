"""An error of the kernel says which call was refused and why; of several refusals the first one is raised."""

import errno

import pytest

from nri_rdma.attach.ops import SetLink
from nri_rdma.attach.port import KernelError, Refused, raise_first


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


def test_the_first_of_several_refusals_is_raised() -> None:
    first, second = KernelError("set mtu", errno.EINVAL), KernelError("set up", errno.ENODEV)
    op = SetLink(up=True)
    with pytest.raises(KernelError) as caught:
        raise_first([Refused(op=op, error=first), Refused(op=op, error=second)])
    assert caught.value is first


def test_where_nothing_was_refused_nothing_is_raised() -> None:
    raise_first([])

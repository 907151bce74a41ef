"""The limit that containers get which ask for none."""

import pytest

from nri_rdma.config.settings import Memlock
from nri_rdma.daemon.local_sockets import default_given
from nri_rdma.doors.oci.questions import Given
from nri_rdma.model.request import UNLIMITED


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        (Memlock(automatic=True), Given(memlock=UNLIMITED, must=False)),
        (Memlock(), Given(memlock=None, must=False)),
        (Memlock(bytes=5), Given(memlock=5, must=True)),
    ],
    ids=["automatic", "off", "bytes"],
)
def test_the_setting_says_it(setting: Memlock, given: Given) -> None:
    assert default_given(setting) == given

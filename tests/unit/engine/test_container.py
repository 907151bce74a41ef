"""A container of which everything is known already."""

from __future__ import annotations

import pytest

from nri_rdma.engine.container import KnownContainer, Listed, ListedContainer
from nri_rdma.model.pool import Asker
from tests.unit.attach.builders import make_pod


def test_the_pod_names_its_container() -> None:
    made = KnownContainer(pod=make_pod("s9"), name="main")
    assert (made.sandbox_id, made.pod_name) == ("s9", "ml/train")


@pytest.mark.parametrize(("majors", "has"), [({231}, True), ({10}, False), (None, True)])
def test_a_major_number_is_one_of_its_nodes(majors: set[int] | None, has: bool) -> None:
    assert KnownContainer(pod=make_pod(), name="main", devices={"/dev/x": (231, 1)}).has_major(majors) is has
    assert not KnownContainer(pod=make_pod(), name="main").has_major(majors)


def test_a_listed_container_was_there_before_us_and_has_its_pods_annotations() -> None:
    item = ListedContainer(name="main", devices={"/dev/x": (231, 1)}, env=frozenset({"A"}), is_privileged=True)
    asker = Asker(namespace="ml", host_network=True)
    listed = Listed(pod=make_pod(), annotations={"a": "b"}, containers=(item,), asker=asker)
    made = listed.container(item)
    assert (made.was_there, made.asker, made.annotations) == (True, asker, {"a": "b"})
    assert (made.devices, made.env, made.is_privileged) == (item.devices, {"A"}, True)

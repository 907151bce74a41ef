"""One request in each of its places: of a pod, of a container, of a CDI spec, of a claim."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.request import DeviceRequest, InterfaceConfig, Mode, Scope
from nri_rdma.text.forms import names_of
from nri_rdma.text.nodes import node_of
from nri_rdma.text.requests import REQUEST_KEYS, read_granted, read_parameters, read_requests

CHOOSE = {"pool": "a", "match": {}, "count": 1, "perGPU": 1, "containers": ["a"], "align": "gpu", "gpus": ["1b:00.0"]}
WHERE_A_CLAIM_SAYS_IT = {
    "pool": "in deviceClassName",
    "match": "in selectors of the request",
    "count": "in count or allocationMode of the request",
    "perGPU": "in count of the request",
    "containers": "in resources.claims of the containers",
    "align": "in constraints of the claim",
    "gpus": "in constraints of the claim",
}


def refusal(read: object) -> tuple[ErrorCode, str, str, str]:
    assert callable(read)
    with pytest.raises(RequestError) as caught:
        read()
    error = caught.value
    return error.code, error.where, error.what, error.hint


@pytest.mark.parametrize("key", CHOOSE)
def test_a_claims_parameters_choose_no_devices_and_say_where_the_claim_does(key: str) -> None:
    hint = f"leave it out, and write it as the claim does: {WHERE_A_CLAIM_SAYS_IT[key]}"
    found = refusal(lambda: read_parameters(node_of({key: CHOOSE[key]}), "claim", 1))
    assert found == (ErrorCode.ANNOTATION_VALUE, f"claim.{key}", "the claim decides it", hint)


@pytest.mark.parametrize("key", CHOOSE)
def test_a_cdi_specs_request_chooses_no_devices(key: str) -> None:
    what = "its devices are chosen already"
    found = refusal(lambda: read_granted(f"{{{key}: 1}}", "spec", "nic", 1))
    assert found == (ErrorCode.ANNOTATION_VALUE, f"spec.{key}", what, f"leave {key} out")


def test_only_a_cdi_spec_says_that_its_container_looks_on() -> None:
    """A pod's author could have any device beside its owner otherwise; Kubernetes asks who writes a claim."""
    text = "{adminAccess: true, mode: shared}"
    places: tuple[Callable[[], object], ...] = (
        lambda: read_requests(text, "place", Scope(), own=False),
        lambda: read_requests(text, "place", Scope(), own=True),
        lambda: read_parameters(node_of({"adminAccess": True, "mode": "shared"}), "place", 1),
    )
    for read in places:
        code, where, _, hint = refusal(read)
        assert (code, where) == (ErrorCode.ANNOTATION_VALUE, "place.adminAccess")
        assert "adminAccess: true" in hint
    assert read_granted(text, "spec", "nic", 1).admin_access
    for mode in ("", ", mode: exclusive"):
        found = refusal(lambda mode=mode: read_granted(f"{{adminAccess: true{mode}}}", "spec", "nic", 1))
        assert found[1:] == (
            "spec.adminAccess",
            "with adminAccess the pod gets device nodes only, and others may have the device",
            "write mode: shared beside it",
        )


def test_an_unknown_key_is_refused_with_the_keys_that_its_place_takes() -> None:
    granted = [name for name in names_of(REQUEST_KEYS) if name not in CHOOSE]
    own = [name for name in granted if name != "adminAccess"]
    of_pod = [name for name in names_of(REQUEST_KEYS) if name != "adminAccess"]
    places: dict[str, tuple[str, Callable[[], object]]] = {
        "claim": (", ".join(own), lambda: read_parameters(node_of({"nonsense": 1}), "claim", 1)),
        "spec": (", ".join(granted), lambda: read_granted("{nonsense: 1}", "spec", "nic", 1)),
        "pod": (", ".join(of_pod), lambda: read_requests("{nonsense: 1}", "pod", Scope(), own=False)),
    }
    for place, (keys, read) in places.items():
        found = refusal(read)
        assert found == (ErrorCode.ANNOTATION_UNKNOWN_KEY, place, "unknown key 'nonsense'", f"the keys are {keys}")


def test_a_cdi_specs_request_has_the_devices_name_unless_it_has_one() -> None:
    assert read_granted("", "spec", "nic", 2) == DeviceRequest(name="nic", where="spec", count=2)
    assert read_granted("{name: rail}", "spec", "nic", 2).name == "rail"


def test_how_an_interface_is_written_depends_on_the_number_of_devices() -> None:
    several = read_parameters(node_of({"mode": "exclusive", "interface": {"name": "x%d"}}), "claim", 2)
    assert (several.count, several.mode, several.interface) == (2, Mode.EXCLUSIVE, InterfaceConfig(name="x%d"))
    for count in (2, None):
        node = node_of({"interface": {"name": "x"}})
        assert (
            refusal(lambda node=node, count=count: read_parameters(node, "claim", count))[1] == "claim.interface.name"
        )


def test_the_count_is_read_before_what_depends_on_it() -> None:
    text = "{interface: {name: x}, containers: [A], count: 0}"
    assert refusal(lambda: read_requests(text, "pod", Scope(), own=False))[1] == "pod.count"


def test_containers_narrow_the_scope_of_the_list() -> None:
    (request,) = read_requests("{containers: [a]}", "pod", Scope(but=frozenset({"b"})), own=False)
    assert request.scope == Scope(only=frozenset({"a"}), but=frozenset({"b"}))


def test_the_list_of_one_container_names_no_containers() -> None:
    found = refusal(lambda: read_requests("{containers: [a]}", "own", Scope(only=frozenset({"a"})), own=True))
    what, hint = "this list belongs to one container already", "leave it out, or move the request to the pod's list"
    assert found == (ErrorCode.ANNOTATION_VALUE, "own.containers", what, hint)

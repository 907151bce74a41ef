"""Bad annotations: the code and the place of each refusal, and its words in golden/."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.annotations import PREFIX, parse_pod_request
from nri_rdma.text.refusals import Errors, refused
from tests.unit.golden import assert_as_before
from tests.unit.rigs.bad_input import assert_complete, in_time

POD = f"{PREFIX}/pod"

# Errors together


def test_the_first_errors_of_a_text_are_kept_and_the_others_are_counted() -> None:
    inner = Errors((refused("a", f"{number}", "mend it") for number in range(4)), most=3)
    with pytest.raises(RequestError) as caught:
        inner.refuse()
    outer = Errors(most=2)
    outer.add(caught.value, 7)
    assert ([it.what for it in outer.kept], outer.omitted, len(outer)) == (["0", "1"], 2, 4)
    assert [it.line for it in outer.kept] == [7, 0]
    with pytest.raises(RequestError) as again:
        outer.refuse()
    assert ([it.what for it in again.value.others], again.value.omitted) == (["1"], 2)


def test_without_an_error_nothing_is_refused() -> None:
    Errors().refuse()


# Annotations

SIZE, SYNTAX, ALIAS = ErrorCode.ANNOTATION_SIZE, ErrorCode.ANNOTATION_SYNTAX, ErrorCode.ANNOTATION_ALIAS
TWICE, UNKNOWN, VALUE = ErrorCode.ANNOTATION_DUPLICATE_KEY, ErrorCode.ANNOTATION_UNKNOWN_KEY, ErrorCode.ANNOTATION_VALUE

ANNOTATIONS: tuple[tuple[str, Mapping[str, str], ErrorCode, str], ...] = (
    ("a key of ours that is none", {f"{PREFIX}/pods": "1"}, UNKNOWN, f"{PREFIX}/pods"),
    ("a container's name that is none", {f"{PREFIX}/container.A": "1"}, VALUE, f"{PREFIX}/container.A"),
    ("two lists of the pod", {PREFIX: "1", POD: "1"}, VALUE, PREFIX),
    ("more annotations than allowed", {f"{PREFIX}/container.c{n}": "1" for n in range(65)}, SIZE, PREFIX),
    ("all annotations too large", {f"{PREFIX}/container.c{n}": " " * 60_000 for n in range(5)}, SIZE, PREFIX),
    ("more requests than allowed", {POD: f"[{'{},' * 60}]", f"{PREFIX}/container.a": f"[{'{},' * 5}]"}, SIZE, PREFIX),
    ("a text too large", {POD: " " * 65_537}, SIZE, POD),
    ("no YAML", {POD: "- a\n- b: c: d"}, SYNTAX, f"{POD} line 2 column 7"),
    ("a character that YAML has not", {POD: "a\0"}, SYNTAX, POD),
    ("a directive", {POD: "%YAML 1.2\n--- 1"}, SYNTAX, f"{POD} line 1 column 1"),
    ("a second document", {POD: "1\n--- 2"}, SYNTAX, f"{POD} line 2 column 1"),
    ("a key of several words", {POD: "? [a]\n: b"}, SYNTAX, f"{POD} line 1 column 3"),
    ("an anchor", {POD: "count: &a 1"}, ALIAS, f"{POD} line 1 column 8"),
    ("an alias", {POD: "count: *a"}, ALIAS, f"{POD} line 1 column 8"),
    ("a tag", {POD: "count: !!int 1"}, ALIAS, f"{POD} line 1 column 8"),
    ("a merge key", {POD: "<<: {count: 1}"}, ALIAS, f"{POD} line 1 column 1"),
    ("a key twice", {POD: "count: 1\ncount: 2"}, TWICE, f"{POD} line 2 column 1"),
    ("a value too long", {POD: f"name: {'a' * 257}"}, SIZE, f"{POD} line 1 column 7"),
    ("nested too deep", {POD: "[" * 9}, SIZE, f"{POD} line 1 column 9"),
    ("a list too long", {POD: f"[{'a,' * 65}]"}, SIZE, f"{POD} line 1 column 130"),
    ("neither count nor pool", {POD: "1.5"}, VALUE, POD),
    ("no count", {POD: "0"}, VALUE, POD),
    ("a list in a list", {POD: "[[]]"}, VALUE, f"{POD}[0]"),
    ("an unknown key", {POD: "cuont: 1"}, UNKNOWN, POD),
    ("a key that is not supported yet", {POD: "profile: fast"}, UNKNOWN, POD),
    ("a route without a gateway", {POD: "routes: [{destination: 0.0.0.0/0}]"}, VALUE, f"{POD}.routes[0]"),
    (
        "several problems",
        {POD: "- {name: A, routes: [{gateway: x}], colour: red}\n- {count: 0}"},
        UNKNOWN,
        f"{POD}[0]",
    ),
    ("one of an interface", {POD: "interface: {dhcp: true}"}, UNKNOWN, f"{POD}.interface"),
    ("a key of strange characters", {POD: '"\\e[31m": 1'}, UNKNOWN, POD),
    ("a name", {POD: "name: Rails"}, VALUE, f"{POD}.name"),
    ("a name twice", {POD: "[{name: a}, {name: a}]"}, ErrorCode.NAME_CONFLICT, f"{POD}[1].name"),
    ("a number for a name", {POD: "name: 1"}, VALUE, f"{POD}.name"),
    ("nothing for a name", {POD: "name:"}, VALUE, f"{POD}.name"),
    ("a pool", {POD: "pool: 7up"}, VALUE, f"{POD}.pool"),
    ("a condition", {POD: "match: {pci: '600'}"}, VALUE, f"{POD}.match.pci"),
    ("a vendor", {POD: "match: {vendor: mellanox}"}, VALUE, f"{POD}.match.vendor"),
    ("a link layer", {POD: "match: {linkLayer: ib}"}, VALUE, f"{POD}.match.linkLayer"),
    ("a NUMA node", {POD: "match: {numaNode: -1}"}, VALUE, f"{POD}.match.numaNode"),
    ("a count", {POD: "count: many"}, VALUE, f"{POD}.count"),
    ("containers", {POD: "containers: a"}, VALUE, f"{POD}.containers"),
    ("no containers", {POD: "containers: []"}, VALUE, f"{POD}.containers"),
    ("containers of a container", {f"{PREFIX}/container.a": "containers: [a]"}, VALUE,
     f"{PREFIX}/container.a.containers"),
    ("an alignment", {POD: "align: {strict: true}"}, VALUE, f"{POD}.align"),
    ("a strict alignment to nothing", {POD: "align: {to: none, strict: true}"}, VALUE, f"{POD}.align"),
    ("a truth value", {POD: "align: {to: gpu, strict: yes}"}, VALUE, f"{POD}.align.strict"),
    ("a GPU", {POD: "gpus: [0]"}, VALUE, f"{POD}.gpus[0]"),
    ("a mode", {POD: "mode: alone"}, VALUE, f"{POD}.mode"),
    ("an interface's name", {POD: "interface: {name: a/b}"}, VALUE, f"{POD}.interface.name"),
    ("a reserved name", {POD: "interface: {name: lo}"}, VALUE, f"{POD}.interface.name"),
    ("a name for several", {POD: "{count: 2, interface: {name: x}}"}, VALUE, f"{POD}.interface.name"),
    ("a name with two numbers", {POD: "interface: {name: x%d%d}"}, VALUE, f"{POD}.interface.name"),
    ("an MTU", {POD: "interface: {mtu: 1}"}, VALUE, f"{POD}.interface.mtu"),
    ("an address", {POD: "interface: {addresses: [10.0.0.2]}"}, VALUE, f"{POD}.interface.addresses[0]"),
    ("a network's address", {POD: "interface: {addresses: [10.0.0.0/24]}"}, VALUE, f"{POD}.interface.addresses[0]"),
    ("addresses for several", {POD: "{count: 2, interface: {addresses: [10.0.0.2/24]}}"}, VALUE,
     f"{POD}.interface.addresses"),
    ("addresses for all", {POD: "{count: all, interface: {addresses: [10.0.0.2/24]}}"}, VALUE,
     f"{POD}.interface.addresses"),
    ("devices", {POD: "devices: [verbs]"}, VALUE, f"{POD}.devices[0]"),
    ("devices twice", {POD: "devices: [umad, umad]"}, VALUE, f"{POD}.devices[1]"),
    ("locked memory", {POD: "memlock: 64MB"}, VALUE, f"{POD}.memlock"),
    ("no limit", {POD: "limits: {}"}, VALUE, f"{POD}.limits"),
)  # fmt: skip


def annotation_refusal(annotations: Mapping[str, str]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_pod_request(annotations)
    return caught.value


@pytest.mark.parametrize(
    ("annotations", "code", "where"), [it[1:] for it in ANNOTATIONS], ids=[it[0] for it in ANNOTATIONS]
)
def test_a_bad_annotation_has_its_code_and_place(annotations: Mapping[str, str], code: ErrorCode, where: str) -> None:
    error = annotation_refusal(annotations)
    assert (error.code, error.where) == (code, where)
    assert_complete(error)


def test_refusals_of_annotations_read_as_they_did() -> None:
    assert_as_before("annotations.txt", ((title, str(annotation_refusal(it))) for title, it, _, _ in ANNOTATIONS))


_YAML = st.text("[]{}:,-?!&*#|>%@`'\" \n\tab01.~<\ud800\0\x85\ufeff", max_size=60)
_WORDS = st.sampled_from(
    [
        *(
            "name: ",
            "count: ",
            "match: ",
            "interface: ",
            "{",
            "}",
            "[",
            "]",
            ", ",
            "\n",
            "  ",
            "- ",
            "pci",
            "all",
            "1",
            "a",
        ),
        *(
            "addresses: ",
            "10.0.0.2/24",
            "containers: ",
            "mode: ",
            "exclusive",
            "limits: ",
            "hcaHandles: ",
            ": ",
            "'",
            "&a ",
        ),
    ]
)
_TEXTS = st.text() | _YAML | st.lists(_WORDS, max_size=20).map("".join)


@in_time
@given(_TEXTS, st.sampled_from([PREFIX, POD, f"{PREFIX}/container.a"]))
def test_any_annotation_is_a_value_or_a_complete_refusal(text: str, key: str) -> None:
    try:
        parse_pod_request({key: text})
    except RequestError as error:
        assert_complete(error)

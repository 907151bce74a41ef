"""What pod authors write is understood or refused with its code and place."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.request import (
    Scope,
)
from nri_rdma.text.annotations import MAX_KEYS, MAX_REQUESTS, PREFIX, asks, meant_key, parse_pod_request
from tests.unit.text.asking import POD, VALUE, refusal, refusal_of, requests

# Whose annotation it is


@pytest.mark.parametrize("key", [PREFIX, f"{PREFIX}/pod", f"{PREFIX}/container.a", f"{PREFIX}/"])
def test_our_keys_ask(key: str) -> None:
    assert asks({"other": "x", key: ""})


@pytest.mark.parametrize("key", [f"{PREFIX}x/pod", f"x.{PREFIX}", "noderesource.dev", "", "rdma"])
def test_other_keys_do_not_ask(key: str) -> None:
    assert not asks({key: "1"})
    assert parse_pod_request({key: "1"}) is None


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("rdma.nodersource.dev/pod", f"{PREFIX}/pod"),
        ("rdma.noderesource.dve", PREFIX),
        ("rmda.noderesource.dev/container.a", f"{PREFIX}/container.a"),
        ("rdma.noderesources.dev/pod", f"{PREFIX}/pod"),
        ("RDMA.noderesource.dev/pod", f"{PREFIX}/pod"),
        ("rdma.noderesouce.de/x/y", f"{PREFIX}/x/y"),
        ("rdma.noderesource.dev.pod", f"{PREFIX}/pod"),
        ("rdma.noderesource.dev.container.a", f"{PREFIX}/container.a"),
        ("rdma.noderesource.dev.example.com/pod", None),
        ("dma.noderesource.d/pod", None),
        ("rdma.noderesource.dev/pod", None),
        ("noderesource.dev/pod", None),
        ("nvidia.com/gpu", None),
        ("", None),
        ("/", None),
    ],
)
def test_a_prefix_with_a_typo_is_known(key: str, meant: str | None) -> None:
    assert meant_key(key) == meant


def test_short_prefixes_are_near_nothing() -> None:
    assert meant_key("a.c/pod", "a.b") is None
    assert meant_key("rdna.io/pod", "rdma.co") is None
    assert meant_key("rdma.ioo/pod", "rdma.io") == "rdma.io/pod"


def test_the_prefix_is_a_setting() -> None:
    parsed = parse_pod_request({"a.b/pod": "1", POD: "broken: ["}, "a.b")
    assert parsed is not None
    assert parsed.requests[0].where == "a.b/pod"


def test_the_bare_prefix_is_the_pods_list() -> None:
    assert requests("1", PREFIX)[0].scope == Scope()


def test_two_lists_for_the_pod_are_refused() -> None:
    error = refusal_of({PREFIX: "1", POD: "1"})
    assert (error.code, error.hint) == (ErrorCode.ANNOTATION_VALUE, f"keep {POD} and remove {PREFIX}")


def test_an_unknown_annotation_names_the_nearest() -> None:
    error = refusal("1", f"{PREFIX}/contaner.a")
    assert error.code is ErrorCode.ANNOTATION_UNKNOWN_KEY
    assert error.hint.startswith("write container.NAME")


@pytest.mark.parametrize("name", ["", "A", "a.b", "-a", "a" * 64])
def test_a_containers_key_needs_a_containers_name(name: str) -> None:
    assert refusal("1", f"{PREFIX}/container.{name}").code is ErrorCode.ANNOTATION_VALUE


# The forms of a value


@pytest.mark.parametrize("text", ["", " ", "# later", "[]", "null", "~", "---\n"])
def test_an_empty_value_asks_for_nothing(text: str) -> None:
    assert parse_pod_request({POD: text}) is None


# Containers: the four examples of the design


def covered(annotations: dict[str, str], container: str) -> list[str]:
    """Where the requests come from that concern a container."""
    parsed = parse_pod_request(annotations)
    assert parsed is not None
    return [request.where for request in parsed.requests if request.scope.covers(container)]


def test_a_pods_list_is_for_every_container() -> None:
    annotations = {POD: "- {}"}
    assert covered(annotations, "a") == covered(annotations, "b") == [f"{POD}[0]"]


def test_a_request_with_containers_is_for_those() -> None:
    annotations = {POD: "- containers: [a]"}
    assert covered(annotations, "a") == [f"{POD}[0]"]
    assert covered(annotations, "b") == []


def test_a_containers_own_list_replaces_the_pods() -> None:
    annotations = {POD: "- {}", f"{PREFIX}/container.a": "- {}"}
    assert covered(annotations, "a") == [f"{PREFIX}/container.a[0]"]
    assert covered(annotations, "b") == [f"{POD}[0]"]


def test_one_word_is_for_every_container_also_a_sidecar() -> None:
    assert covered({PREFIX: "1"}, "sidecar") == [PREFIX]


@pytest.mark.parametrize("nothing", ["", "[]"])
def test_a_container_with_an_empty_list_gets_nothing_of_the_pods(nothing: str) -> None:
    annotations = {POD: "1", f"{PREFIX}/container.a": nothing}
    assert covered(annotations, "a") == []
    assert covered(annotations, "b") == [POD]


def test_containers_in_a_containers_own_list_are_refused() -> None:
    error = refusal("{containers: [a]}", f"{PREFIX}/container.a")
    assert (error.code, error.where) == (ErrorCode.ANNOTATION_VALUE, f"{PREFIX}/container.a.containers")


# Names


def test_requests_are_numbered_over_the_pod_in_order() -> None:
    annotations = {f"{PREFIX}/container.b": "1", f"{PREFIX}/container.a": "- {}\n- {name: x}", POD: "- {}\n- {}"}
    parsed = parse_pod_request(annotations)
    assert parsed is not None
    assert [(request.name, request.where.removeprefix(PREFIX)) for request in parsed.requests] == [
        ("0", "/pod[0]"),
        ("1", "/pod[1]"),
        ("2", "/container.a[0]"),
        ("x", "/container.a[1]"),
        ("4", "/container.b"),
    ]


@pytest.mark.parametrize("text", ["[{name: a}, {name: a}]", "[{}, {name: '0'}]"])
def test_a_name_is_given_once_in_a_pod(text: str) -> None:
    error = refusal(text)
    assert (error.code, error.where) == (ErrorCode.NAME_CONFLICT, f"{POD}[1].name")


def test_a_name_is_given_once_over_all_lists() -> None:
    code = refusal_of({POD: "{name: a}", f"{PREFIX}/container.c": "{name: a}"}).code
    assert code is ErrorCode.NAME_CONFLICT


def test_an_interface_name_is_given_once_in_a_pod() -> None:
    assert refusal("[{interface: {name: x}}, {interface: {name: x}}]").code is ErrorCode.NAME_CONFLICT


def test_a_name_template_may_be_given_twice() -> None:
    assert len(requests("[{interface: {name: x%d}}, {interface: {name: x%d}}]")) == 2


def test_an_address_is_given_once_in_a_pod() -> None:
    text = "[{interface: {addresses: [10.0.0.2/24]}}, {interface: {addresses: [10.0.0.2/16]}}]"
    error = refusal(text)
    assert (error.code, error.where) == (ErrorCode.ANNOTATION_VALUE, f"{POD}[1].interface.addresses")


# Law: hostile until parsed


def test_a_large_annotation_is_refused_before_it_is_parsed() -> None:
    start = time.thread_time()
    assert refusal("x" * (1 << 20)).code is ErrorCode.ANNOTATION_SIZE
    assert time.thread_time() - start < 0.1


def test_the_number_of_annotations_is_bounded() -> None:
    many = {f"{PREFIX}/container.c{number}": "" for number in range(MAX_KEYS + 1)}
    assert refusal_of(many).code is ErrorCode.ANNOTATION_SIZE
    many.popitem()
    assert parse_pod_request(many) is None


def test_the_number_of_requests_in_a_pod_is_bounded() -> None:
    many = {POD: "- {}\n" * 40, f"{PREFIX}/container.a": "- {}\n" * (MAX_REQUESTS - 40)}
    parsed = parse_pod_request(many)
    assert parsed is not None
    assert len(parsed.requests) == MAX_REQUESTS
    many[f"{PREFIX}/container.a"] += "- {}\n"
    assert refusal_of(many).code is ErrorCode.ANNOTATION_SIZE


def test_annotations_of_many_pods_are_read_once_and_those_beyond_32_kib_are_not_kept() -> None:
    short, most = 8 * 1024 - len(POD), 32 * 1024 - len(POD)
    for length, is_kept in ((1, True), (short, True), (short + 1, True), (most, True), (most + 1, False)):
        text = "1" + " " * (length - 1)
        first, second = (parse_pod_request({POD: text, "other": number}) for number in "12")
        assert first == second
        assert (first is second) is is_kept


def test_the_largest_text_that_is_read_is_read_in_time() -> None:
    gpus = ", ".join(f"'{number:02x}:00.0'" for number in range(40))
    text = "\n".join([f"- {{gpus: [{gpus}], match: {{driver: mlx5_core}}}}"] * 64)
    start = time.thread_time()
    assert len(requests(text)) == 64
    assert time.thread_time() - start < 0.25


_TEXT = st.text() | st.text("[]{}:,-?!&*#|>%'\" \n\tab01.~<\ud800\0", max_size=60) | VALUE.map(json.dumps)
_KEY = st.sampled_from([PREFIX, POD, f"{PREFIX}/container.a", f"{PREFIX}/container.b"]) | st.text(
    st.characters(), max_size=8
).map(lambda rest: f"{PREFIX}/{rest}")


@given(st.dictionaries(_KEY, _TEXT, max_size=4))
def test_no_annotation_raises_anything_but_a_request_error(annotations: dict[str, str]) -> None:
    try:
        parsed = parse_pod_request(annotations)
    except RequestError as error:
        assert error.where
        str(error).encode()
    else:
        names = [request.name for request in parsed.requests] if parsed is not None else []
        assert len(names) == len(set(names))


@pytest.mark.parametrize("more", [0, 1])
def test_all_annotations_together_have_256_kib(more: int) -> None:
    keys = [f"{PREFIX}/container.c{number}" for number in range(5)]
    room = 256 * 1024 - sum(map(len, keys)) - 4 * 60_000
    texts = dict(zip(keys, [*[" " * 60_000] * 4, " " * (room + more)], strict=True))
    if more:
        with pytest.raises(RequestError, match="larger than 262144 bytes together"):
            parse_pod_request(texts)
    else:
        assert parse_pod_request(texts) is None

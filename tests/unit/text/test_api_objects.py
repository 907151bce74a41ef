"""What goes wrong while an answer is read is the API server's error; what is ours stays ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from nri_rdma.errors import ApiServerError, ClaimError, ErrorCode
from nri_rdma.text.api_objects import reading, word


@pytest.mark.parametrize(
    "wrong",
    [
        lambda told: told["b"],
        lambda told: told["a"][0],
        lambda told: told["a"].b,
        lambda told: told["a"] + 1,
        lambda _told: int("a"),
    ],
    ids=["no key", "no item", "no object", "another type", "no number"],
)
def test_an_answer_of_another_form_is_an_error_of_the_api_server(wrong: Callable[[Any], object]) -> None:
    with pytest.raises(ApiServerError) as caught, reading("Node", "/api/v1/nodes/a"):
        wrong({"a": []})
    assert str(caught.value).startswith("nri-rdma: API-SERVER: the API server's answer is no Node, /api/v1/nodes/a. ")


def test_other_errors_are_not_the_api_servers() -> None:
    error = ClaimError(ErrorCode.CLAIM_CHANGED, "it is another one")
    with pytest.raises(ClaimError) as caught, reading("Node", "a"):
        raise error
    assert caught.value is error
    with pytest.raises(AssertionError), reading("Node", "a"):
        raise AssertionError


def test_a_word_is_a_text_that_its_pattern_matches_as_a_whole() -> None:
    assert (word("a"), word("ab", re.compile("a.")), word("")) == ("a", "ab", "")
    for value, pattern in ((None, None), (1, None), (["a"], None), ("abc", "a."), ("a\n", "a"), ("", "a")):
        with pytest.raises(ValueError, match="is no such text"):
            word(value, re.compile(pattern) if pattern else None)

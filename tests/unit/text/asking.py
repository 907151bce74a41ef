"""What a text in an annotation asks for, or why it is refused."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from nri_rdma.errors import RequestError
from nri_rdma.model.request import (
    DeviceRequest,
)
from nri_rdma.text.annotations import PREFIX, parse_pod_request
from nri_rdma.text.forms import names_of
from nri_rdma.text.requests import ALIGN_KEYS, INTERFACE_KEYS, LIMITS_KEYS, MATCH_KEYS, REQUEST_KEYS

POD = f"{PREFIX}/pod"


def requests(text: str, key: str = POD) -> tuple[DeviceRequest, ...]:
    parsed = parse_pod_request({key: text})
    return parsed.requests if parsed is not None else ()


def refusal(text: str, key: str = POD) -> RequestError:
    return refusal_of({key: text})


def refusal_of(annotations: dict[str, str]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_pod_request(annotations)
    return caught.value


_KEYS = names_of((*REQUEST_KEYS, *MATCH_KEYS, *INTERFACE_KEYS, *LIMITS_KEYS, *ALIGN_KEYS))
WORDS = [*_KEYS, "all", "gpu", "10.0.0.2/24", "x%d"]
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(WORDS)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=12,
)

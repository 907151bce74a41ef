"""JSON of no kind, with words that our documents have."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Files that commands have saved


NODE: dict[str, Any] = {
    "version": 1,
    "devices": [],
    "gpus": [],
    "rdma_netns": "shared",
    "rdma_cgroup": True,
    "rdma_cm": None,
    "notes": [],
}
SPAN: dict[str, Any] = {
    "name": "a",
    "trace_id": "t",
    "span_id": "a",
    "parent_id": "",
    "start_ns": 1,
    "end_ns": 2,
    "attributes": {},
    "error": "",
}


JSON_WORDS = st.sampled_from(
    [*NODE, *SPAN, "spans", "pci", "netdevs", "ports", "char_devices", "virtual", "id", "index", "numa_node", "state"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("0000:10:00.0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(JSON_WORDS, inner, max_size=5),
)

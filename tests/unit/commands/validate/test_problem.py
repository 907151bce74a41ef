"""Every problem has a code, a place and a next step."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.commands.validate.files import check
from tests.unit.commands.validate.checking import PREFIX

# Anything


_PIECES = st.sampled_from(
    [
        "kind: Pod\n", "kind: Deployment\n", "---\n", "items:\n",
        "kind: ResourceClaim\napiVersion: resource.k8s.io/v1\n",
        "metadata:\n", "  annotations:\n", f"    {PREFIX}: ", f"    {PREFIX}/container.a: ", "spec:\n", "  template:\n",
        "  containers:\n", "  - name: a\n", "|\n", "      - count: 2\n", "'1'\n", "2\n", "{mode: alone}\n", "[a]\n",
        "  devices: {config: [{opaque: {driver: rdma.noderesource.dev, parameters: {mode: 1}}}]}\n",
        "cdiVersion: 0.3.0\n",
        "[pools.a]\n", 'modes = ["shared"]\n', "log_level = 1\n", "&a ", "*a ",
        "\ufeff", "\0", "\t", "\xff", "\r", "\x85",
    ]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=14).map("".join) | st.text(max_size=60))
def test_any_text_is_checked_and_every_problem_has_code_place_and_next_step(text: str) -> None:
    data = text.encode(errors="surrogatepass")
    found = check(data, "FILE")
    assert found.documents or found.problems
    for problem in found.problems:
        assert problem.what
        assert problem.hint
        assert problem.line <= len(re.split("[\n\r\x85\u2028\u2029]", text)) + 1  # YAML's lines, and its end
        assert "\n" not in str(problem)

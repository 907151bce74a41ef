"""Lines of ours in somebody else's TOML: what they say, and that taking them out gives the text of before."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.commands.install.toml_lines import BEFORE, MARK, CannotEditError, with_keys, without_ours

TABLE = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes", "runc")
HEADER = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]'
KEYS = {"base_runtime_spec": "/etc/base.json", "pod_annotations": ["a", "a/*"]}
DEFAULT = f"""version = 2
imports = []

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    enable_cdi = false
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]
      {HEADER}
        base_runtime_spec = ""
        pod_annotations = []
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true
[timeouts]
  "io.containerd.timeout.shim.load" = "5s"
"""
"""As `containerd config default` writes it, shortened."""


def table(text: str) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads(text)
    for key in TABLE:
        step = found[key]
        assert isinstance(step, dict)
        found = step
    return found


def test_lines_that_are_there_are_replaced_and_kept_as_comments() -> None:
    edited = with_keys(DEFAULT, TABLE, KEYS)
    assert table(edited) == table(DEFAULT) | KEYS
    assert f'{BEFORE}        base_runtime_spec = ""\n' in edited
    assert without_ours(edited) == DEFAULT


def test_a_table_that_is_not_there_is_added_at_the_end() -> None:
    plain = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/x"\n'
    edited = with_keys(plain, TABLE, KEYS)
    assert edited.startswith(plain)
    assert table(edited) == KEYS
    assert without_ours(edited) == plain


def test_a_key_above_all_tables_is_replaced_or_comes_first() -> None:
    for plain in (DEFAULT, DEFAULT.replace("imports = []\n", ""), "", "[debug]\n"):
        edited = with_keys(plain, (), {"imports": ["/etc/conf.d/90.toml"]})
        assert tomllib.loads(edited)["imports"] == ["/etc/conf.d/90.toml"]
        assert without_ours(edited) == plain


def test_edits_go_on_after_ours_and_stay() -> None:
    edited = with_keys(DEFAULT, TABLE, KEYS)
    theirs = edited.replace("enable_cdi = false", "enable_cdi = true") + '[debug]\nlevel = "info"\n'
    assert (
        without_ours(theirs) == DEFAULT.replace("enable_cdi = false", "enable_cdi = true") + '[debug]\nlevel = "info"\n'
    )


@pytest.mark.parametrize(
    "plain",
    [
        f"{HEADER}\npod_annotations = [\n  'x',\n]\n",
        'plugins."io.containerd.grpc.v1.cri".containerd.runtimes = {runc = {runtime_type = "x"}}\n',
        "plugins = 1\n",
        f"x = '''\n{HEADER}\n'''\n{HEADER}\nbase_runtime_spec = 'y'\n",
        "version = 2",
    ],
    ids=["a list of several lines", "an inline table", "no table", "a header in a text", "no end of line"],
)
def test_what_is_not_written_line_by_line_is_left_to_its_owner(plain: str) -> None:
    with pytest.raises(CannotEditError):
        with_keys(plain, TABLE, KEYS)


LINES = st.sampled_from(
    [
        *DEFAULT.splitlines(keepends=True),
        "# a comment\n",
        "\n",
        "x = 1\r\n",
        "[[a]]\n",
        "y = [\n",
        "]\n",
        f"{HEADER}\r\n",
    ]
)


@given(st.lists(LINES, max_size=12).map("".join))
def test_whatever_can_be_edited_can_be_taken_back(text: str) -> None:
    for path, keys in ((TABLE, KEYS), ((), {"imports": ["/x"]})):
        try:
            edited = with_keys(text, path, keys)
        except (CannotEditError, tomllib.TOMLDecodeError):
            continue
        assert without_ours(edited) == text
        assert MARK in edited
        assert with_keys(without_ours(edited), path, keys) == edited

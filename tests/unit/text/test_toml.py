"""The line of every key of a TOML document, against documents whose lines are known because they were written here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.text.toml import line_of, lines_of

TEXT = '''# a comment
log_level = "info"   # line 2

[pools.rails]        # line 4
modes = [
  "exclusive",
  # not a key = 1
  "shared",          # line 8
]
select = { vendor = "15b3", numaNode = [0, 1] }
"quoted.key" = """
a = 1
[not.a.table]
"""

[[pools.rails.exclude]]
device = "mlx5_0"    # line 17
[[pools.rails.exclude]]
device = "mlx5_1"

[[rules]]
namespaces = ["a"]
[rules.podLabels]    # line 23
team = "ml"
[[rules]]
pools.nested = 1
'''


def test_every_key_has_the_line_on_which_it_begins() -> None:
    assert dict(lines_of(TEXT)) == {
        "log_level": 2,
        "pools.rails": 4,
        "pools.rails.modes": 5,
        "pools.rails.modes[0]": 5,
        "pools.rails.modes[1]": 5,
        "pools.rails.select": 10,
        "pools.rails.select.vendor": 10,
        "pools.rails.select.numaNode": 10,
        "pools.rails.select.numaNode[0]": 10,
        "pools.rails.select.numaNode[1]": 10,
        "pools.rails.quoted.key": 11,
        "pools.rails.exclude[0]": 16,
        "pools.rails.exclude[0].device": 17,
        "pools.rails.exclude[1]": 18,
        "pools.rails.exclude[1].device": 19,
        "rules[0]": 21,
        "rules[0].namespaces": 22,
        "rules[0].namespaces[0]": 22,
        "rules[0].podLabels": 23,
        "rules[0].podLabels.team": 24,
        "rules[1]": 25,
        "rules[1].pools": 26,
        "rules[1].pools.nested": 26,
    }


def test_what_is_missing_has_the_line_of_what_is_around_it() -> None:
    lines = lines_of(TEXT)
    assert line_of(lines, "rules[1].modes[0]") == 25
    assert line_of(lines, "pools.rails.exclude[1].device.deeper") == 19
    assert line_of(lines, "sysfs_root") == 0


def test_lines_end_as_windows_ends_them_too() -> None:
    assert lines_of(TEXT.replace("\n", "\r\n")) == lines_of(TEXT)


_TEXTS = st.text(alphabet='ab"\n[]=# .\\', max_size=12)
_TABLES: st.SearchStrategy[dict[str, object]] = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), st.integers() | st.booleans() | _TEXTS | st.lists(_TEXTS)),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner | st.lists(inner, min_size=1), max_size=3),
    max_leaves=8,
)


def _written(table: Mapping[str, object], where: tuple[str, ...] = ()) -> Iterator[str]:
    """The lines of a table, its values before its tables."""
    for key, value in table.items():
        if not isinstance(value, dict) and not _is_list_of_tables(value):
            yield f"{key} = {_value(value)}"
    for key, value in table.items():
        place = (*where, key)
        if isinstance(value, dict):
            yield f"[{'.'.join(place)}]"
            yield from _written(value, place)
        elif _is_list_of_tables(value):
            assert isinstance(value, list)
            for item in value:
                yield f"[[{'.'.join(place)}]]"
                yield from _written(item, place)


def _is_list_of_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return str(value)


def _key_paths(value: object, where: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            path = f"{where}.{key}" if where else key
            if not _is_list_of_tables(item):
                yield path
            yield from _key_paths(item, path)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield f"{where}[{index}]"
            yield from _key_paths(item, f"{where}[{index}]")


@given(_TABLES)
def test_every_path_of_a_document_has_a_line_and_no_other_has(table: dict[str, object]) -> None:
    text = "".join(f"{line}\n" for line in _written(table))
    assert tomllib.loads(text) == table
    assert sorted(lines_of(text)) == sorted(_key_paths(table))


@given(_TABLES)
def test_the_line_of_a_value_begins_with_its_key(table: dict[str, object]) -> None:
    lines = [*_written(table)]
    for path, number in lines_of("".join(f"{line}\n" for line in lines)).items():
        key = path.rpartition(".")[2].partition("[")[0]
        assert key in lines[number - 1].partition("=")[0]

"""Problems of a configuration: the line and the key of each, and its words in golden/."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.config.problems import problems_of
from nri_rdma.config.settings import Document, Settings
from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.text.pools import POOL_KEYS, RULE_KEYS
from nri_rdma.text.selectors import SELECTOR_KEYS
from tests.unit.golden import assert_as_before
from tests.unit.rigs.bad_input import assert_complete, in_time

CONFIGS: tuple[tuple[str, str, int, str], ...] = (
    ("no TOML", 'log_level "info"', 1, ""),
    ("a key twice", 'log_level = "info"\nlog_level = "info"', 2, ""),
    ("a list that is not closed", "rules = [\n", 2, ""),
    ("a number without end", f"memlock = {'9' * 5000}", 0, ""),
    ("brackets without end", "rules = " + "[" * 5000, 0, ""),
    ("tables without end", f"pools{'.a' * 2000} = 1", 0, ""),
    ("a key without end", f"log_level = 1\n{'a.' * 500_000}a = 1", 2, ""),
    ("an unknown setting", 'log_levle = "info"', 1, "log_levle"),
    ("a setting of strange characters", '"\\u001b[31m" = 1', 1, "\\x1b[31m"),
    ("a word that it does not have", 'log_level = "loud"', 1, "log_level"),
    ("a truth value", 'tracing = "perhaps"', 1, "tracing"),
    ("a path", "state_dir = 1", 1, "state_dir"),
    ("an index", "plugin_index = 9", 1, "plugin_index"),
    ("a name for the runtime", 'plugin_name = "a b"', 1, "plugin_name"),
    ("locked memory", 'memlock = "64MB"', 1, "memlock"),
    ("a date for locked memory", "memlock = 1979-05-27", 1, "memlock"),
    ("pools that are no tables", "pools = 1", 1, "pools"),
    ("no pools", "pools = {}", 1, "pools"),
    ("a pool's name", "[pools.7up]\n", 1, "pools.7up"),
    ("a pool that is no table", "[pools]\na = 1", 2, "pools.a"),
    ("a condition of no kind", '[pools.a]\nmodes = ["shared"]\nselect = "mlx5_0"', 3, "pools.a.select"),
    ("no condition", '[pools.a]\nmodes = ["shared"]\nselect = {}', 3, "pools.a.select"),
    ("a partition", '[pools.a]\nmodes = ["shared"]\nselect.pkey = 0', 3, "pools.a.select.pkey"),
    ("a root device", '[pools.a]\nmodes = ["shared"]\nselect.rootDevice = "x"', 3, "pools.a.select.rootDevice"),
    ("limits above the most", '[pools.a]\nmodes = ["shared"]\nlimits.hcaHandles = 2\nmaxLimits.hcaHandles = 1', 3,
     "pools.a.limits.hcaHandles"),
    ("rules that are no list", "rules = 1", 1, "rules"),
    ("no rules", "rules = []", 1, "rules"),
    ("a rule that is no table", "rules = [1]", 1, "rules[0]"),
    ("two rules of one name", '[[rules]]\nname = "a"\n[[rules]]\nname = "a"', 4, "rules[1].name"),
    ("labels", "[[rules]]\npodLabels = {}", 2, "rules[0].podLabels"),
    ("a label's key", '[[rules]]\npodLabels = { "a b" = "c" }', 2, "rules[0].podLabels"),
    ("interface keys", '[[rules]]\ninterface = ["speed"]', 2, "rules[0].interface[0]"),
    ("a runtime handler", "[[rules]]\nruntimeHandlers = [1]", 2, "rules[0].runtimeHandlers[0]"),
)  # fmt: skip


def config_problems(text: str) -> tuple[SettingError, ...]:
    return problems_of(Document(name="FILE", text=text))


@pytest.mark.parametrize(("text", "line", "path"), [it[1:] for it in CONFIGS], ids=[it[0] for it in CONFIGS])
def test_a_bad_configuration_has_its_line_and_key(text: str, line: int, path: str) -> None:
    (error,) = config_problems(text)
    assert (error.code, error.line, error.path) == (ErrorCode.SETTING, line, path)
    assert_complete(error)


def test_of_thousands_of_problems_a_hundred_are_told() -> None:
    """The right key is looked for beside each wrong one, which took 8 s for 20,000 of them."""
    text = "".join(f"key_{number} = 1\n" for number in range(20_000))
    started = time.process_time()
    assert len(problems_of(Document(name="FILE", text=text))) == 100
    assert time.process_time() - started < 4


def test_problems_of_pools_rules_and_settings_together_are_told_beside_the_others() -> None:
    pool = '[pools.{}]\nmodes = ["shared"]\n'
    text = f"nice = 5\nallow_default_pool = true\n{pool.format('a')}{pool.format('b')}[[rules]]\n[[rules]]\nx = 1\n"
    problems = config_problems(text + '[adopt]\nmode = "x"\n')
    assert [(it.line, it.path) for it in problems] == [
        (1, "nice"),
        (2, "allow_default_pool"),
        (5, "pools.b"),  # it has the devices of pool a, of which the same is told once
        (9, "rules[1]"),
        (11, "adopt.mode"),
    ]


def test_refusals_of_configurations_read_as_they_did() -> None:
    assert_as_before("configurations.txt", ((title, str(config_problems(text)[0])) for title, text, _, _ in CONFIGS))


_SETTINGS = st.sampled_from([*Settings.__dataclass_fields__, "pools.a", "rules", "nothing", '"a b"'])
_KEYS = st.sampled_from([key.name for key in (*POOL_KEYS, *RULE_KEYS, *SELECTOR_KEYS)])
_VALUES = st.recursive(
    st.sampled_from(
        ["1", "-1", "true", "1.5", "inf", "1979-05-27", '""', '"shared"', "'ens1f0#0-3'", '"""\na"""', "0x15b3"]
    )
    | st.integers().map(str)
    | st.text("ab*?\u00e9[]=#\U0001f600", max_size=5).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(_KEYS, inner, max_size=3).map(
            lambda fields: "{" + ", ".join(f"{key} = {value}" for key, value in fields.items()) + "}"
        )
    ),
    max_leaves=6,
)
_LINES = (
    st.sampled_from(["[pools.a]", "[pools.b]", "[[rules]]", "[pools.a.select]", "# nothing", "", "[", "a = ["])
    | st.builds("{} = {}".format, _SETTINGS | _KEYS, _VALUES)
    | st.text("[]={}\"'#\\\n\r\t a1.,\0\ud800", max_size=20)
)


@in_time
@given(st.text() | st.lists(_LINES, max_size=8).map("\n".join))
def test_any_configuration_is_settings_or_complete_refusals(text: str) -> None:
    for error in config_problems(text):
        assert_complete(error)
        assert error.line <= text.count("\n") + 1

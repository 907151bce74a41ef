"""Options and variables that several commands share."""

from tests.unit.commands.cli.manifests import GOOD
from tests.unit.commands.cli.program import assert_one_error, nri_rdma


def test_a_setting_of_the_environment_is_named_when_it_is_wrong() -> None:
    done = nri_rdma("inventory", environment={"NRI_RDMA_TRACING": "perhaps"})
    assert "tracing = 'perhaps'" in assert_one_error(done, "SETTING", 2)


def test_the_prefix_is_an_option_and_a_variable() -> None:
    text = GOOD.replace("rdma.noderesource.dev: rails", "a.b: '0'")
    assert nri_rdma("validate", "-", text=text).returncode == 0
    assert nri_rdma("validate", "-", "--annotation-prefix", "a.b", text=text).returncode == 1
    assert nri_rdma("validate", "-", text=text, environment={"NRI_RDMA_ANNOTATION_PREFIX": "a.b"}).returncode == 1


def test_a_prefix_that_no_key_has_is_refused() -> None:
    told = assert_one_error(nri_rdma("validate", "-", "--annotation-prefix", "a.b/", text=GOOD), "SETTING", 2)
    assert "--annotation-prefix 'a.b/' cannot be used" in told

"""Settings of a link as one text, and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.link import STABLE_SECRET, features_of, features_text, sysctls_of, sysctls_text

_NAMES = st.from_regex(r"[-a-z0-9_/.]{1,20}", fullmatch=True)
_VALUES = st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=12)


def test_a_sysctl_is_a_line_of_name_and_value() -> None:
    text = "ipv4/conf/rp_filter 1\nipv6/conf/accept_ra 0"
    values = {"ipv4/conf/rp_filter": "1", "ipv6/conf/accept_ra": "0"}
    assert sysctls_text(values) == text
    assert sysctls_of(text) == values


def test_a_sysctl_may_have_several_words_or_none() -> None:
    text = f"ipv4/neigh/app_probes 1 2\t3\nipv4/conf/empty \n{STABLE_SECRET} 2001:db8::1"
    assert sysctls_of(text) == {
        "ipv4/neigh/app_probes": "1 2\t3",
        "ipv4/conf/empty": "",
        STABLE_SECRET: "2001:db8::1",
    }


def test_a_journal_without_sysctls_and_features_has_none() -> None:
    assert (sysctls_of(""), sysctls_text({})) == ({}, "")
    assert (features_of(""), features_text(())) == ({}, "")


@given(st.dictionaries(_NAMES, _VALUES))
def test_all_sysctls_come_back_in_their_order(values: dict[str, str]) -> None:
    assert list(sysctls_of(sysctls_text(values)).items()) == list(values.items())


def test_a_feature_is_a_line_as_ethtool_has_it() -> None:
    text = "tx-tcp-segmentation on\nrx-gro off"
    features = (("tx-tcp-segmentation", True), ("rx-gro", False))
    assert features_text(features) == text
    assert features_of(text) == dict(features)


@given(st.dictionaries(_NAMES, st.booleans()))
def test_all_features_come_back_in_their_order(features: dict[str, bool]) -> None:
    assert list(features_of(features_text(features.items())).items()) == list(features.items())

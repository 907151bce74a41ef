"""The alerts of docs/examples/alerts.yaml are right: a parser of PromQL reads them, and what they ask for is on the
page of metrics; each names whom it is for and a heading where its reader goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from promql_parser import MatchOp, VectorSelector

from nri_rdma.doors.metrics.declared import METRICS, MetricDeclaration, MetricKind
from nri_rdma.errors import ErrorCode
from tests.house.test_docs import anchor_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text()
FILE = "docs/examples/alerts.yaml"
RUNBOOKS = "https://runbooks.example.com/"
CODE = "{{ $labels.code | toLower }}"
NOBODYS = {ErrorCode.NOT_READY, ErrorCode.RETURNING}
"""Codes of pods that are on their way."""
SCRAPED_OF_A_PROCESS = frozenset({"up", "process_start_time_seconds"})
SUFFIXES = ("_bucket", "_count", "_sum")
SCRAPED = frozenset({"job", "instance"})
"""Labels that Prometheus itself gives."""
SERIES = {
    f"{it.name}{suffix}": it for it in METRICS for suffix in (SUFFIXES if it.kind is MetricKind.HISTOGRAM else ("",))
}


def blocks() -> list[Any]:
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]


RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((DOCS / "examples/alerts.yaml").read_text())["groups"] for rule in group["rules"]
]


def selectors(text: str) -> Iterator[VectorSelector]:
    found: list[VectorSelector] = []

    def visit(node: object) -> bool:
        if isinstance(node, VectorSelector):
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(text), visit)
    yield from found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_the_page_has(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    found = list(selectors(rule["expr"]))
    assert found
    for it in found:
        labels = {matcher.name for matcher in it.matchers.matchers}
        assert it.name is not None
        assert f"`{it.name}`" in PAGE or it.name in SCRAPED_OF_A_PROCESS or it.name.endswith(SUFFIXES)
        if it.name not in SCRAPED_OF_A_PROCESS:
            assert it.name in SERIES, f"{FILE}, {rule['alert']}: {it.name} is no metric of ours"
            declared: MetricDeclaration = SERIES[it.name]
            unknown = labels - SCRAPED - {*declared.labels}
            assert unknown == set(), f"{FILE}, {rule['alert']}: {it.name} has no such labels"
    named = {*re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])}
    assert "instance" in named and named <= SCRAPED | {label for it in found for label in _labels(it)}


def _labels(selector: VectorSelector) -> tuple[str, ...]:
    return SERIES[selector.name].labels if selector.name in SERIES else ()


def test_there_is_an_alert_for_each_thing_that_a_person_should_know_of() -> None:
    asked = {it.name for rule in RULES for it in selectors(rule["expr"])}
    wanted = {
        "up",
        "nri_rdma_runtime_synchronized",
        "nri_rdma_refusals_total",
        "nri_rdma_lost_netdevs_total",
        "nri_rdma_attachments_failing_to_return",
        "nri_rdma_unserved_pods",
        "nri_rdma_devices",
        "nri_rdma_guarded",
        "nri_rdma_guard_resource_served",
        "nri_rdma_spans_total",
        "process_start_time_seconds",
    }
    assert wanted - asked == set(), f"{FILE}: write an alert for these"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_urgent_it_is_and_where_its_reader_goes_on(rule: dict[str, Any]) -> None:
    assert rule["labels"] in [{"severity": it} for it in ("critical", "warning", "info")]
    assert rule["annotations"].keys() == {"summary", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].removeprefix(RUNBOOKS).partition("#")
    headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(), re.MULTILINE)
    wanted = [code.lower() for code in ErrorCode] if anchor == CODE else [anchor] * bool(anchor)
    lacking = {*wanted} - {anchor_of(title) for title in headings}
    assert lacking == set(), f"{FILE}, {rule['alert']}: docs/{page} has no such headings"


@pytest.mark.parametrize("code", ErrorCode)
def test_a_refusal_is_the_matter_of_one_alert_and_pages_nobody_at_once(code: ErrorCode) -> None:
    mine = [rule for rule in RULES if any(_counts(it, code) for it in selectors(rule["expr"]))]
    assert len(mine) == (code not in NOBODYS), f"{FILE}: {code} is for whom? {[rule['alert'] for rule in mine]}"
    assert all(int(rule["for"].removesuffix("m")) >= 10 and rule["labels"]["severity"] != "critical" for rule in mine)


def _counts(selector: VectorSelector, code: ErrorCode) -> bool:
    """Whether a selector takes refusals with that code."""
    if selector.name != "nri_rdma_refusals_total":
        return False
    return all(
        bool(re.fullmatch(it.value, code)) is (it.op == MatchOp.Re)
        for it in selector.matchers.matchers
        if it.name == "code"
    )


def test_a_mistake_of_a_pod_is_information_for_those_whose_pod_it_is() -> None:
    (rule,) = (it for it in RULES if it["alert"] == "NriRdmaPodMistake")
    (selector,) = selectors(rule["expr"])
    assert rule["labels"] == {"severity": "info"}
    assert _counts(selector, ErrorCode.ANNOTATION_UNKNOWN_KEY) and not _counts(selector, ErrorCode.ATTACH_FAILED)


def test_the_parser_finds_a_planted_fault() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        list(selectors("sum(nri_rdma_devices"))
    assert [it.name for it in selectors('rate(a_total{b="c"}[5m]) > on(x) d')] == ["a_total", "d"]


def test_the_other_examples_name_port_and_path() -> None:
    probe, scrape = blocks()
    assert probe["readinessProbe"]["httpGet"] == {"host": "127.0.0.1", "port": 9178, "path": "/healthz"}
    (job,) = scrape["scrape_configs"]
    assert job["job_name"] == "nri-rdma" and all(it["targets"][0].endswith(":9178") for it in job["static_configs"])

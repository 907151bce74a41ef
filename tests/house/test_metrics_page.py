"""The alerts of docs/metrics.md are right: a parser of PromQL reads them, and what they ask for is on the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from promql_parser import VectorSelector

from nri_rdma.doors.metrics.declared import METRICS, MetricDeclaration, MetricKind
from nri_rdma.errors import ErrorCode

PAGE = (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text()
SUFFIXES = ("_bucket", "_count", "_sum")
SCRAPED = frozenset({"job", "instance"})
"""Labels that Prometheus itself gives."""
SERIES = {
    f"{it.name}{suffix}": it for it in METRICS for suffix in (SUFFIXES if it.kind is MetricKind.HISTOGRAM else ("",))
}


def blocks() -> list[Any]:
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]


RULES: list[dict[str, Any]] = [
    rule for it in blocks() if "groups" in it for group in it["groups"] for rule in group["rules"]
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
    assert rule.keys() <= {"alert", "expr", "for", "annotations"}
    found = list(selectors(rule["expr"]))
    assert found
    for it in found:
        labels = {matcher.name for matcher in it.matchers.matchers}
        assert it.name is not None
        if it.name != "up":
            assert it.name in SERIES, f"docs/metrics.md, {rule['alert']}: {it.name} is no metric of ours"
            declared: MetricDeclaration = SERIES[it.name]
            unknown = labels - SCRAPED - {*declared.labels}
            assert unknown == set(), f"docs/metrics.md, {rule['alert']}: {it.name} has no such labels"
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
    }
    assert wanted - asked == set(), "docs/metrics.md: write an alert for these"
    assert ErrorCode.NOT_READY in next(rule["expr"] for rule in RULES if rule["alert"] == "NriRdmaRefusals")


def test_the_parser_finds_a_planted_fault() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        list(selectors("sum(nri_rdma_devices"))
    assert [it.name for it in selectors('rate(a_total{b="c"}[5m]) > on(x) d')] == ["a_total", "d"]


def test_the_other_examples_name_port_and_path() -> None:
    probe, scrape = (it for it in blocks() if "groups" not in it)
    assert probe["readinessProbe"]["httpGet"] == {"host": "127.0.0.1", "port": 9178, "path": "/healthz"}
    (job,) = scrape["scrape_configs"]
    assert job["job_name"] == "nri-rdma" and all(it["targets"][0].endswith(":9178") for it in job["static_configs"])

"""What of the chart is generated is what the code says now."""

import re
from pathlib import Path

import pytest

from deploy.chart import VALUES_DECIDE, generated
from tests.cluster.privileges import BEGIN, END, table
from tests.rig.cache import PROJECT


@pytest.mark.parametrize(("path", "text"), generated().items(), ids=lambda it: getattr(it, "name", ""))
def test_a_generated_file_is_as_the_code_has_it(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `make generate`, which writes it anew"


def test_the_settings_that_values_decide_are_those_of_the_template() -> None:
    templates = PROJECT / "deploy/helm/nri-rdma/templates"
    text = "".join((templates / name).read_text() for name in ("_helpers.tpl", "daemonset.yaml"))
    given = {name.lower() for name in re.findall(r"NRI_RDMA_([A-Z_]+)", text)}
    assert given | {"state_dir", "control_socket"} == VALUES_DECIDE


def test_the_page_has_the_rows_that_the_cluster_shows() -> None:
    page = PROJECT / "docs/kubernetes.md"
    found = page.read_text().partition(BEGIN)[2].partition(END)[0]
    assert found.strip() == table(), f"put this between the marks in {page.name}:\n{table()}"

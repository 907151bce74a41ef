"""What the code generates is in the repository as the code generates it now."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_rdma.config.schema import config_schema
from nri_rdma.text.request_schema import request_schema

PROJECT = Path(__file__).resolve().parents[2]
STATES, KEYS = (runpy.run_path(str(PROJECT / "docs" / name)) for name in ("generate.py", "key_tables.py"))
PAGES: tuple[tuple[Path, Callable[[str], str]], ...] = (
    *STATES["PAGES"],
    *((it, KEYS["generated"]) for it in KEYS["PAGES"]),
)


@pytest.mark.parametrize(("page", "generate"), PAGES, ids=lambda it: it.name if isinstance(it, Path) else "")
def test_a_page_has_what_the_code_generates(page: Path, generate: Callable[[str], str]) -> None:
    text = page.read_text(encoding="utf-8")
    assert generate(text) == text, f"run `make generate`, which writes {page.relative_to(PROJECT)} anew"


@pytest.mark.parametrize(("file", "schema"), [("config", config_schema), ("request", request_schema)])
def test_a_schema_is_what_the_code_generates(file: str, schema: Callable[[], object]) -> None:
    path = f"api/{file}.schema.json"
    assert schema() == json.loads((PROJECT / path).read_text()), f"run `make generate`, which writes {path} anew"

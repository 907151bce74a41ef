"""The documents say what is there."""

import re
from pathlib import Path

from nri_rdma.errors import ErrorCode

PROJECT = Path(__file__).resolve().parents[2]


def test_every_error_code_has_its_entry_and_every_entry_its_code() -> None:
    entries = re.findall(r"^### ([A-Z-]+)$", (PROJECT / "docs/operations.md").read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(code.value for code in ErrorCode)


def test_every_error_code_is_raised_somewhere() -> None:
    sources = "".join(path.read_text() for path in (PROJECT / "nri_rdma").rglob("*.py"))
    hook = (PROJECT / "hooks/nri-rdma-hook").read_text()  # it cannot import ours
    raised = [code for code in ErrorCode if f"ErrorCode.{code.name}" in sources or f'"{code}"' in hook]
    assert set(ErrorCode) - set(raised) == set()


def test_links_between_documents_lead_somewhere() -> None:
    for page in [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"

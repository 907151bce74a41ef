"""The documents say what is there."""

import re
from pathlib import Path

from nri_rdma.commands.doctor.kernel import OLDEST_KERNEL
from nri_rdma.commands.doctor.runtime import CONTAINERD_TOML
from nri_rdma.commands.doctor.software import OLDEST_PYTHON
from nri_rdma.errors import ErrorCode

PROJECT = Path(__file__).resolve().parents[2]


def pages() -> list[Path]:
    """The pages that people read."""
    return [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]


def test_every_error_code_has_its_entry_and_every_entry_its_code() -> None:
    entries = re.findall(r"^### ([A-Z-]+)$", (PROJECT / "docs/operations.md").read_text(), re.MULTILINE)
    codes = [code.value for code in ErrorCode]
    lacking, unknown = sorted(set(codes) - set(entries)), sorted(set(entries) - set(codes))
    assert lacking == [], (
        "docs/operations.md: write `### CODE` for these, with cause and cure, and a link in its contents"
    )
    assert unknown == [], "docs/operations.md: remove these entries, or add the codes to nri_rdma/errors.py"
    assert sorted(entries) == sorted(codes), "docs/operations.md: a code has two entries; keep one"


def test_every_error_code_is_raised_somewhere() -> None:
    sources = "".join(path.read_text() for path in (PROJECT / "nri_rdma").rglob("*.py"))
    hook = (PROJECT / "hooks/nri_rdma_hook.py").read_text()  # it cannot import ours
    raised = [code for code in ErrorCode if f"ErrorCode.{code.name}" in sources or f'"{code}"' in hook]
    unused = set(ErrorCode) - set(raised)
    assert unused == set(), "raise these codes, or remove them from nri_rdma/errors.py and docs/operations.md"


def test_links_between_documents_lead_somewhere() -> None:
    for page in pages():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            is_there = "://" in target or (page.parent / target).exists()
            assert is_there, f"{page.relative_to(PROJECT)} links to {target}, which is not there: mend the link"


def test_the_readme_names_what_doctor_checks_and_the_runtimes_that_were_run() -> None:
    readme = (PROJECT / "README.md").read_text()
    python = ".".join(map(str, OLDEST_PYTHON))
    toml = "".join(f"    {line}\n" for line in CONTAINERD_TOML.splitlines())
    kernel = ".".join(map(str, OLDEST_KERNEL[:2]))
    for words in (f"| Python | {python} or newer", f"| Linux | {kernel} or newer |", toml):
        assert words in readme, f"README.md: write what nri_rdma/commands/doctor has:\n{words}"
    assert f'requires-python = ">={python}"' in (PROJECT / "pyproject.toml").read_text()
    rows = re.findall(r"^\| (containerd|CRI-O) ([0-9.]+) \(", (PROJECT / "docs/runtimes.md").read_text(), re.MULTILINE)
    tested = readme[readme.index("Tested: ") :].partition("\n")[0]
    assert rows
    assert [version for _, version in rows if version not in tested] == [], (
        "README.md: name these versions of docs/runtimes.md after `Tested: `"
    )


def test_a_page_says_make_with_targets_that_are_there() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    for page in pages():
        for target in re.findall(r"(?:`|^)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE):
            is_there = re.search(rf"^{target}:", makefile, re.MULTILINE)
            assert is_there, f"{page.relative_to(PROJECT)} says make {target}: name a target of the Makefile"


def test_the_pages_for_contributors_name_files_that_are_there() -> None:
    roots = [PROJECT, PROJECT / "nri_rdma", PROJECT / "tests/unit"]
    for page in ("CONTRIBUTING.md", "docs/architecture.md"):
        named = re.findall(r"`((?:[a-z][a-z_]*/)+[a-z_]*)(?:\.py)?`", (PROJECT / page).read_text())
        lacking = [
            it for it in named if not any((path / it).is_dir() or (path / f"{it}.py").is_file() for path in roots)
        ]
        assert lacking == [], f"{page}: name files and folders that are there"
        assert len(named) > 20


def test_each_page_is_in_the_list_of_pages() -> None:
    listed = set(re.findall(r"\]\(([^)]+\.md)\)", (PROJECT / "docs/README.md").read_text()))
    names = {path.name for path in (PROJECT / "docs").glob("*.md")} - {"README.md"}
    assert names - listed == set(), "docs/README.md: write a row for these pages"


INSTALLER = re.compile(r"\b(?:pipx?3?|uvx?)\b.*")
OUR_NAME = re.compile(r"nri[-_.]rdma(?:\[[^]]*\])?(?:[=<>~!].*)?")


def test_no_text_asks_to_install_our_name_from_the_package_index() -> None:
    """The name is free on PyPI: who registers it would be root on a node. A folder or a file of a wheel is named, or
    the index is switched off."""
    folders = ("nri_rdma", "docs", "hooks", "systemd", "api", "bench", "deploy")
    texts = [path for folder in folders for path in (PROJECT / folder).rglob("*") if path.is_file()]
    texts = [path for path in texts if path.suffix in {"", ".py", ".md", ".service", ".toml", ".yaml", ".json"}]
    wrong = [
        f"{path.relative_to(PROJECT)}: {line.strip()}"
        for path in [PROJECT / "README.md", PROJECT / "Dockerfile", PROJECT / "Makefile", *texts]
        for line in path.read_text().splitlines()
        if installs_from_the_index(line)
    ]
    assert wrong == [], "name a folder or a file of a wheel instead of our name, or add --no-index"


def installs_from_the_index(line: str) -> bool:
    """Whether a line of text is, or has, a command that takes nri-rdma from the package index."""
    found = INSTALLER.search(line)
    if found is None or not re.search(r"\b(install|download|wheel|add|run|tool)\b", found[0]) or "--no-index" in line:
        return False
    return any(OUR_NAME.fullmatch(word.strip("'\"`,.;:()")) for word in found[0].split())


def test_the_check_of_install_commands_knows_wrong_from_right() -> None:
    wrong = (
        "hint = \"pip install 'nri-rdma[otlp]'\"",
        "/opt/nri-rdma/bin/pip install --upgrade nri-rdma",
        "pipx install nri-rdma==0.1",
        "uv tool install nri_rdma",
    )
    right = (
        "/opt/nri-rdma/bin/pip install '.[otlp]'",
        "pip install --no-cache-dir /src[otlp]",
        "pip install --no-index --find-links wheels 'nri-rdma[otlp]'",
        "pip install wheels/nri_rdma-0.1.0-py3-none-any.whl",
        "`pip` comes with python3-venv; nri-rdma needs it",
    )
    assert [installs_from_the_index(line) for line in wrong + right] == [True] * len(wrong) + [False] * len(right)


def test_the_contents_of_the_operations_page_are_its_headings() -> None:
    page = (PROJECT / "docs/operations.md").read_text()
    contents, _, rest = page.partition("\n## ")
    links = re.findall(r"\[([^]]+)\]\(#([^)]+)\)", contents)
    sections, codes = (re.findall(rf"^{mark} (.+)$", f"## {rest}", re.MULTILINE) for mark in ("##", "###"))
    step = "docs/operations.md: the links at its top are not those of its headings, which are the second list here"
    assert [title for title, _ in links if title not in codes] == sections, step
    assert [title for title, _ in links if title in codes] == sorted(codes), step
    assert [anchor for _, anchor in links] == [anchor_of(title) for title, _ in links], step


def test_links_to_headings_lead_to_one() -> None:
    anchors = {
        page.resolve(): {anchor_of(title) for title in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}
        for page in pages()
    }
    for page in pages():
        for target, anchor in re.findall(r"\]\(([^):#]*)#([^)]+)\)", page.read_text()):
            there = (page.parent / target).resolve() if target else page.resolve()
            step = f"{page.relative_to(PROJECT)} links to {target}#{anchor}: name a heading of {there.name}"
            assert anchor in anchors[there], step


def anchor_of(title: str) -> str:
    """The name that the page's readers give to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")

"""The documentation keeps its form, and what it refers to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
ALL = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# A path of the project: a known first part, and an ending or a folder.
FIRST = "benchmarks|clients|configs|deploy|docs|examples|flfa_app|strategies|tests"
PATH = re.compile(rf"`((?:{FIRST})/[\w./-]*[\w/])`")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def long_lines(text: str) -> list[str]:
    """Lines of more than 100 characters; a row of a table cannot be wrapped."""
    return [x for x in text.splitlines() if len(x) > 100 and not x.startswith("|")]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def dead_links(page: Path, text: str) -> list[str]:
    """Links to files or headings that do not exist."""
    dead = []
    for link in LINK.findall(prose(text)):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        if not target.exists() or (
            anchor and anchor not in anchors(target.read_text())
        ):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", ALL, ids=name)
def test_lines_are_short(page: Path) -> None:
    assert long_lines(page.read_text()) == []


@pytest.mark.parametrize("page", ALL, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page, page.read_text()) == []


@pytest.mark.parametrize("page", ALL[:2] + PAGES, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = PATH.findall(prose(page.read_text()))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_begins_with_what_its_reader_can_do_afterwards(page: Path) -> None:
    first = prose(page.read_text()).split("\n\n")[1]
    assert first.startswith(("After this page you ", "Each page begins "))


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert {page.name for page in PAGES} == {"README.md", *LINK.findall(index)}


def test_a_round_can_be_followed_in_35_files() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    hops = [line for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    files = {file for line in hops for file in PATH.findall(line)}
    assert len(hops) == 10
    assert 25 <= len(files) <= 35


def test_the_checks_find_what_they_look_for(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    other = tmp_path / "other.md"
    other.write_text("# A title, with *marks*\n")
    text = "[a](other.md) [b](gone.md) [c](other.md#a-title-with-marks) [d](other.md#x)"
    assert dead_links(page, text) == ["gone.md", "other.md#x"]
    assert dead_links(page, f"```\n{text}\n```\n") == []
    assert long_lines("x" * 100 + "\n" + "y" * 101 + "\n|" + "z" * 100) == ["y" * 101]
    named = PATH.findall("`tests/x.py` `flfa_app/data/` `python -m tests.x` `a/b`")
    assert named == ["tests/x.py", "flfa_app/data/"]

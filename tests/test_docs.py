"""The docs hold: links lead somewhere, every file says what it is, every example in a docstring runs."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCES = sorted(
    path
    for folder in ("src", "tests", "bench", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path.stat().st_size
)
WITH_EXAMPLES = [path for path in SOURCES if path.is_relative_to(ROOT / "src") and ">>>" in path.read_text()]

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings give, spelled as code hosts spell them."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{shown(page)} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), f"{shown(page)} links to {link}, which has no such heading"


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{shown(path)} has no docstring"


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=shown)
def test_the_examples_in_docstrings_run(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.failed == 0
    assert outcome.attempted > 0


def test_every_decision_is_in_the_list_of_decisions() -> None:
    listed = (ROOT / "docs/decisions/README.md").read_text()
    for page in ROOT.glob("docs/decisions/[0-9]*.md"):
        assert f"]({page.name})" in listed

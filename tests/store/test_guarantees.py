"""docs/guarantees.md names tests: each is there, and every fault has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    assert re.search(rf"^(    )?def {name}\(", (ROOT / file).read_text(), re.M), f"{file} has no {name}"


def test_every_fault_and_every_way_to_try_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| what is", "| # "))]
    assert len(rows) >= 30
    for row in rows:
        assert "::test_" in row, row

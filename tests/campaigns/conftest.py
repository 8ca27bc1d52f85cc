"""The machinery of the tests of checkpoints plays in campaigns, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def checkpoint_machinery(monkeypatch: pytest.MonkeyPatch) -> None:
    """``import conftest`` means that of `tests/checkpoint`, and what stands beside it can be imported."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "checkpoint"))
    monkeypatch.delitem(sys.modules, "conftest", raising=False)

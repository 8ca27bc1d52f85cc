"""Jobs of the tests keep their journals in a folder of their own, which goes with the tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_state() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="perdure-state-")
    before = os.environ.get("PERDURE_STATE")
    os.environ["PERDURE_STATE"] = folder
    yield
    if before is None:
        del os.environ["PERDURE_STATE"]
    else:
        os.environ["PERDURE_STATE"] = before
    shutil.rmtree(folder, ignore_errors=True)

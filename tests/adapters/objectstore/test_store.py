"""The object store against a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.adapters.objectstore import ObjectStore
from perdure.store.api import Store
from perdure.testing.store import StoreContract


class TestObjectStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, place: str) -> None:
        self.place = place

    def make_store(self, tmp_path: Path) -> Store:
        return ObjectStore(self.place)

"""The fabric of one process passes the contract, in worlds of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.fabric import Fabric, SoloFabric
from perdure.testing.fabric import FabricContract


class TestSoloFabric(FabricContract):
    worlds = (1,)

    def run_ranks(self, world: int, work: Callable[[Fabric], Any]) -> list[Any]:
        assert world == 1
        return [work(SoloFabric())]

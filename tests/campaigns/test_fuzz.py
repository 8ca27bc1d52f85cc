"""Fuzz the readers for hours: `./dev campaign fuzz`. ``SEED=n`` in the environment is where to begin (a number that a
failure names, or one never tried), ``HOURS=x`` how long to go on.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "hostile"))

import fuzzing
import test_fuzz as quick

pytestmark = pytest.mark.campaign
BLOCK = 1000


def test_the_readers_stand_random_changes(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", time.time_ns() // 1_000_000))
    end = time.monotonic() + 3600 * float(os.environ.get("HOURS", "1"))
    fuzz = fuzzing.Fuzz(tmp_path / "run")
    while time.monotonic() < end:
        quick.torn(fuzz, range(seed, seed + BLOCK))
        quick.forged(fuzz, range(seed, seed + BLOCK))
        quick.framed(range(seed, seed + BLOCK))
        seed += BLOCK
        print(f"up to seed {seed}: {fuzz.refused} refused, {fuzz.accepted} read right", flush=True)

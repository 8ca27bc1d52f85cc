"""`perdure demo` tells its whole story: kills, both tiers, and every bit the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_survives_its_kills_bit_for_bit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "demo", "--json"], capture_output=True, text=True, timeout=590, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["bit_exact"] is True
    assert report["tiers"] == ["memory", "disk"]
    assert len(report["kill_to_step_s"]) == 2
    assert report["blocking_ratio"] > 0
    assert 0 < report["raw_bytes"] <= report["stored_bytes"]
    assert report["verified_pieces"] > 0
    for kinds in report["digests"].values():
        assert kinds.keys() >= {"parameters", "optimizer", "random generators", "schedule", "data position"}
        assert all(killed == calm != "" for killed, calm in kinds.values())

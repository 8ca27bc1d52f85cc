"""Few descriptors and wrong clocks are told."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from perdure.supervisor import check_host
from perdure.supervisor.checks import Context


@pytest.mark.parametrize(
    ("soft", "left", "word"),
    [
        (1 << 20, 1 << 20, "ok"),
        ((1 << 63) - 1, 1 << 40, "ok"),
        (1024, 1 << 20, "note"),
        (64, 1 << 20, "problem"),
        (1 << 20, 10, "problem"),
    ],
)
def test_few_descriptors_are_told(soft: int, left: int, word: str) -> None:
    assert check_host.descriptors_verdict(soft, soft, left).word == word


def test_the_limit_that_is_told_is_that_of_this_process() -> None:
    child = "perdure.supervisor.check_child descriptors perdure.supervisor.check_host:descriptors {}"
    command = f"ulimit -Sn 300; exec {sys.executable} -m {child}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert '"soft":300' in done.stdout
    assert '"word":"note"' in done.stdout


@pytest.mark.parametrize(
    ("offset_s", "error_s", "word"),
    [
        (None, 0.0, "ok"),
        (0.3, 0.0, "ok"),
        (-2.0, 0.0, "note"),
        (2.0, 1.5, "ok"),
        (400.0, 1.0, "problem"),
        (-400.0, 1.0, "problem"),
    ],
)
def test_an_offset_counts_beyond_what_it_is_known_to(offset_s: float | None, error_s: float, word: str) -> None:
    found = check_host.clock_verdict(offset_s, error_s, back_s=0.0, drift_s=0.0, wall_s=2e9)
    assert found.word == word


def test_clocks_that_cannot_be_right_are_told() -> None:
    assert check_host.clock_verdict(None, 0.0, back_s=1e-6, drift_s=0.0, wall_s=2e9).word == "problem"
    assert check_host.clock_verdict(None, 0.0, back_s=0.0, drift_s=0.0, wall_s=1e6).word == "problem"
    assert check_host.clock_verdict(None, 0.0, back_s=0.0, drift_s=-5.0, wall_s=2e9).word == "note"


def test_the_controllers_clock_is_carried_forward_to_now() -> None:
    context = Context(wall_s=time.time() - 100 - 7, wall_seen_s=time.monotonic() - 100, wall_error_s=0.1)
    found = check_host.clock(context)
    assert found.facts["offset_s"] == pytest.approx(7, abs=1)
    assert found.word == "note"

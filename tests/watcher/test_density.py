"""Values that are rare in their own past are told, once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perdure.errors import CallError
from perdure.watcher.density import Density
from perdure.watcher.evidence import Evidence


def replay(density: Density, values: list[float]) -> list[Evidence]:
    return [e for t, x in enumerate(values) if (e := density.observe(x, at_s=float(t)))]


def slow_scores(values: list[float], window: int, quiet: int) -> list[float]:
    """The definition, by counting."""
    raw: list[float] = []
    for i, x in enumerate(values):
        past = values[max(0, i - window) : i]
        if len(past) <= 10:
            raw.append(0.0)
            continue
        low, high = min(past), max(past)
        band = (high - low) / 50
        near = sum(x - band <= y <= x + band for y in past)
        outside = max(x - high, low - x, 0.0)
        far = min(3.0, 4 * outside / (high - low)) if high > low else 3.0 * (outside > 0)
        raw.append(-math.log10((near + 0.2) / len(past)) + far)
    return [max(0.0, r) if r > max(raw[max(0, i - quiet) : i], default=-1.0) else 0.0 for i, r in enumerate(raw)]


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_what_counting_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.round(rng.standard_t(3, 400), 1).tolist()
    density = Density("x", window=100, quiet=20)
    assert [density.score(x) for x in values] == pytest.approx(slow_scores(values, 100, 20))


@pytest.mark.parametrize("seed", range(5))
def test_a_level_that_was_never_seen_is_told_once(seed: int) -> None:
    values = np.random.default_rng(seed).normal(50, 2, 2000)
    values[1500:1560] += 40
    found = replay(Density("x"), values.tolist())
    assert min(e.at_s for e in found if e.at_s >= 1500) == 1500
    assert len([e for e in found if 1500 <= e.at_s < 1560]) <= 3
    assert len([e for e in found if e.at_s < 1500]) <= 2


def test_a_constant_metric_that_changes_is_told() -> None:
    assert [e.at_s for e in replay(Density("x"), [1.0] * 500 + [2.0] + [1.0] * 50)] == [500.0]


def test_what_is_not_finite_is_skipped_and_a_short_past_is_silent() -> None:
    assert replay(Density("x"), [math.nan, math.inf, 1.0] * 500) == []
    assert replay(Density("x"), [*range(100)]) == []


def test_after_a_reset_there_is_no_past() -> None:
    density = Density("x")
    replay(density, [1.0] * 500)
    density.reset()
    assert density.observe(9.0, at_s=0.0) is None


def test_windows_that_are_none_are_refused() -> None:
    with pytest.raises(CallError, match="samples or more"):
        Density("x", window=3)

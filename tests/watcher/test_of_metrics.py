"""Metrics that vanish from the log, and lines from which nothing does."""

from __future__ import annotations

import pytest

from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import Label
from perdure.watcher.of_metrics import OfMetrics, numbers_in
from perdure.watcher.samples import LogLine, Looks


def fed(watch: OfMetrics, *texts: str, rank: int = 0) -> list[Evidence]:
    lines = [LogLine(text=text, at_s=1.0, rank=rank) for text in texts]
    return list(watch.feed(Looks(lines=lines), now_s=1.0))


def step(number: int, norm: bool = True) -> str:
    return f"step {number} loss {3 / (number + 1):.4f}" + (f" grad_norm {number % 7}.25" if norm else "") + " lr 2e-05"


def test_a_metric_that_vanishes_is_told_while_its_line_goes_on_and_not_after_it_is_back() -> None:
    watch = OfMetrics()
    assert fed(watch, *(step(n) for n in range(20))) == []
    assert fed(watch, *(step(n, norm=False) for n in range(20, 28))) == []
    (found,) = fed(watch, step(28, norm=False))
    assert (found.kind, found.label, found.ranks) == ("metric_lost", Label.METRIC_LOST, ())
    assert "grad_norm" in found.sentence
    assert fed(watch)[0].sentence == found.sentence  # a state, found again at every look
    assert fed(watch, step(29)) == []


def test_a_job_that_prints_nothing_or_other_lines_loses_nothing() -> None:
    watch = OfMetrics()
    fed(watch, *(step(n) for n in range(20)))
    assert fed(watch) == []
    assert fed(watch, *(f"validation {n} accuracy 0.{n}" for n in range(100))) == []


def test_a_metric_that_comes_now_and_then_is_waited_for() -> None:
    watch = OfMetrics()
    for number in range(200):
        text = step(number, norm=False) + (" memory 12.5" if number % 10 == 0 else "")
        assert fed(watch, text) == [], number
    assert fed(watch, *(step(n, norm=False) for n in range(200, 216))) == []
    assert [e.kind for e in fed(watch, *(step(n, norm=False) for n in range(216, 240)))] == ["metric_lost"]


def test_what_was_printed_a_few_times_at_the_start_is_no_metric() -> None:
    watch = OfMetrics()
    fed(watch, *(step(n) + " warmup 1" for n in range(5)))
    assert fed(watch, *(step(n) for n in range(5, 100))) == []


def test_a_new_attempt_may_print_other_lines_and_memory_is_bounded() -> None:
    watch = OfMetrics()
    fed(watch, *(step(n) for n in range(20)))
    watch.restarted(1)
    assert fed(watch, *(step(n, norm=False) for n in range(40))) == []
    for rank in range(100):
        fed(watch, *(f"a{n} 1 b{n} 2" for n in range(100)), rank=rank)
    assert sum(len(kinds) for kinds in watch._seen.values()) <= 8 * 32


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Epoch: 3 | loss=0.25, acc: 91.5%", ("Epoch", "loss", "acc")),
        ("{'loss': 0.25, 'learning_rate': '2e-05'}", ("loss", "learning_rate")),
        ("10.0.0.1:4711 connected", ()),
        ("loss nan grad_norm inf", ("loss", "grad_norm")),
        ("a" * 100_000, ()),
    ],
)
def test_lines_of_metrics_are_read(text: str, names: tuple[str, ...]) -> None:
    assert numbers_in(text) == names

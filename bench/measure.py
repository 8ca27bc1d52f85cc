"""Times that can be compared: the sides take turns in one run, the first turn stands apart, the machine's load is told.

Every benchmark here asks one question, measures perdure and its named peers this way, and prints ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Stopwatch", "Times", "arguments", "report", "take_turns"]


@dataclass(frozen=True, slots=True)
class Times:
    """What one side took, in seconds: its first turn, then the others in order."""

    first_s: float
    later_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median of the turns after the first; of the first if there is no other."""
        return statistics.median(self.later_s or (self.first_s,))

    def __str__(self) -> str:
        later = self.later_s or (self.first_s,)
        return f"first {self.first_s:8.4f}   then {self.median_s:8.4f}   ({min(later):.4f} to {max(later):.4f})"


class Stopwatch:
    """Seconds since it was made.

    >>> Stopwatch().s() < 60
    True
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def s(self) -> float:
        return time.perf_counter() - self._start


Turn = Callable[[], Mapping[str, float]]
Measured = dict[str, dict[str, Times]]  # metric -> side -> its times


def take_turns(sides: Mapping[str, Turn], *, rounds: int) -> Measured:
    """Let each side have one turn a round, first one then another beginning; collect what they return, by metric.

    A turn returns its seconds by metric, such as ``{"blocking": 0.1, "durable": 2.0}``. Round 0 is the first turn.

    >>> sorted(take_turns({"a": lambda: {"copy": 1.0}, "b": lambda: {"copy": 2.0}}, rounds=3)["copy"])
    ['a', 'b']
    """
    seen: dict[str, dict[str, list[float]]] = {}
    order = list(sides)
    for round_ in range(rounds):
        for side in order[round_ % len(order) :] + order[: round_ % len(order)]:
            for metric, seconds in sides[side]().items():
                seen.setdefault(metric, {}).setdefault(side, []).append(seconds)
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {
        metric: {side: Times(taken[0], tuple(taken[1:])) for side, taken in by_side.items()}
        for metric, by_side in seen.items()
    }


def arguments(question: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=question, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="turns of each side; the first stands apart")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def machine() -> dict[str, object]:
    """The machine, and what else it was doing: the load averages of 1 and 5 minutes count runnable tasks."""
    one, five, _ = os.getloadavg()
    threads = os.environ.get("OMP_NUM_THREADS", "default")
    cores = len(os.sched_getaffinity(0))
    return {
        "cores": cores,
        "load_1min": round(one, 2),
        "load_5min": round(five, 2),
        "threads": threads,
        "kernel": platform.release(),
    }


def report(
    question: str, measured: Measured, *, ours: Mapping[str, str], facts: Mapping[str, object], as_json: bool
) -> None:
    """Print the times of every side and the ratio of each peer's median to ours: above 1 where perdure is faster.

    ``ours`` names our side for each metric; ``facts`` says on what was measured.
    """
    ratios = {
        metric: {
            side: round(times.median_s / by_side[ours[metric]].median_s, 3)
            for side, times in by_side.items()
            if side != ours[metric]
        }
        for metric, by_side in measured.items()
        if ours.get(metric) in by_side
    }
    if as_json:
        sides = {
            metric: {
                side: {"first_s": times.first_s, "median_s": times.median_s, "later_s": list(times.later_s)}
                for side, times in by_side.items()
            }
            for metric, by_side in measured.items()
        }
        whole = {"question": question, "machine": machine(), "facts": dict(facts), "times": sides, "ratios": ratios}
        print(json.dumps(whole))
        return
    print(question)
    print("  " + ", ".join(f"{name} {value}" for name, value in {**facts, **machine()}.items()))
    for metric, by_side in measured.items():
        print(f"\n{metric} (seconds)")
        for side, times in by_side.items():
            ratio = ratios.get(metric, {}).get(side)
            tail = f"   {ratio:.2f}x ours" if ratio is not None else ""
            print(f"  {side:44} {times}{tail}")

"""How soon and how surely do the watcher's numeric detectors see what is wrong, and how often what is not?

`python watch_numbers.py [--only SECTION ...] [--steps N] [--seeds N] [--first-seed N] [--data FOLDER]`

Sections: ranks (recorded compute times, one slowed by 10 and 5 %), nodes (two ranks of a node, a whole node), healthy
(nobody may be named), job (step times against their past), pythia (real loss curves with restarts), bloom (a real spike
from a log), nab (one-metric detection), cost (time of one call). pythia, bloom and nab read ``--data``, by default
../shared/data/watch beside the repository; they fail if it is not there.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from perdure.watcher.density import Density
from perdure.watcher.history import StepTimes
from perdure.watcher.loss import LossWatch
from perdure.watcher.peers import Peers

Rows = Iterator[tuple[str, str, str, bool]]
"""What, asked, measured, kept."""


def nodes_of(ranks: int) -> list[str]:
    return [f"node{rank // 8}" for rank in range(ranks)]


def share(part: int, whole: int) -> str:
    """A share with its Wilson interval of 95 %."""
    if not whole:
        return "none"
    p, z = part / whole, 1.96
    middle, half = p + z * z / (2 * whole), z * (p * (1 - p) / whole + z * z / (4 * whole**2)) ** 0.5
    low, high = (middle - half) / (1 + z * z / whole), (middle + half) / (1 + z * z / whole)
    return f"{p:.3f} ({low:.2f}-{high:.2f}, n={whole})"


class Compute:
    """Own compute times as a healthy job has them, in blocks of (steps, ranks)."""

    def __init__(self, seed: int, ranks: int, *, noise: float, skew: float = 0.01, drift: float = 0.01) -> None:
        self._rng = np.random.default_rng([seed, ranks])
        self._ranks, self._noise, self._drift = ranks, noise, drift
        self._skew = 1 + skew * self._rng.uniform(-1, 1, ranks)
        self._step = 0

    def block(self, steps: int) -> np.ndarray:
        rng, shape = self._rng, (steps, self._ranks)
        at = self._step + np.arange(steps)
        times = 0.1 * (1 + self._noise * rng.standard_normal(shape)) * self._skew
        times *= (1 + 0.3 * rng.random((steps, 1))) * (1 + self._drift * at[:, None] / 1e5)
        times[rng.random(steps) < 1 / 400] *= 3
        one = np.flatnonzero(rng.random(steps) < 1 / 400)
        times[one, rng.integers(0, self._ranks, len(one))] *= 3
        times[at % 500 == 0] *= 1.5
        self._step += steps
        return times


def slow(ranks: int, slowdown: float, seed: int, who: Callable[[np.random.Generator], list[int]]) -> tuple[Any, ...]:
    rng = np.random.default_rng([seed, ranks, int(1000 * slowdown)])
    start, hit = int(rng.integers(30, 250)), who(rng)
    times = Compute(seed, ranks, noise=0.01).block(start + 40)
    times[start:, hit] *= 1 + slowdown
    peers = Peers(range(ranks), nodes_of(ranks))
    found = [e for step, row in enumerate(times) for e in peers.observe(step, row, at_s=float(step))]
    return start, hit, found


def ranks_section(options: argparse.Namespace) -> Rows:
    for ranks in (2, 3, 8, 64, 512, 4096, 16384):
        for slowdown, within, least in ((0.1, 8, 0.95), (0.05, 20, 0.9)):
            seeds = options.seeds if ranks <= 512 else max(5, options.seeds // 10)
            delays, named = [], 0
            for seed in range(options.first_seed, options.first_seed + seeds):
                start, hit, found = slow(ranks, slowdown, seed, lambda rng, n=ranks: [int(rng.integers(n))])
                good = [e for e in found if e.kind == "slow_rank" and e.ranks == tuple(hit)]
                delays.append((good[0].step or 0) - start + 1 if good else 999)
                named += len(found) == 1 and bool(good) and 0 < delays[-1] <= within
            p95 = np.percentile(delays, 95)
            text = f"median {np.median(delays):.0f}, p95 {p95:.0f} steps; alone and in time {share(named, seeds)}"
            asked = f"<= {within} steps, named >= {least}"
            yield (
                f"rank +{slowdown:.0%} of {ranks}",
                asked,
                text,
                named >= least * seeds and np.median(delays) <= within,
            )


def nodes_section(options: argparse.Namespace) -> Rows:
    cases: dict[str, Callable[[int], list[int]]] = {
        "two ranks of a node": lambda node: [8 * node + 1, 8 * node + 6],
        "a whole node": lambda node: list(range(8 * node, 8 * node + 8)),
    }
    for name, members in cases.items():
        for ranks in (16, 64, 1024):
            for slowdown, least in ((0.1, 0.95), (0.05, 0.9)):
                one = 0
                for seed in range(options.first_seed, options.first_seed + options.seeds // 2):
                    pick = lambda rng, n=ranks, m=members: m(int(rng.integers(n // 8)))  # noqa: E731
                    _, hit, found = slow(ranks, slowdown, seed, pick)
                    one += {e.nodes for e in found} == {(f"node{hit[0] // 8}",)} and found[-1].kind == "slow_node"
                total = options.seeds // 2
                text = f"only its node named {share(one, total)}"
                yield f"{name} +{slowdown:.0%} of {ranks}", f"one node, >= {least}", text, one >= least * total


def healthy_section(options: argparse.Namespace) -> Rows:
    for ranks, noise in ((2, 0.01), (3, 0.02), (8, 0.01), (8, 0.02), (64, 0.02), (512, 0.01), (16384, 0.01)):
        steps = options.steps if ranks <= 512 else options.steps // 50
        source = Compute(options.first_seed, ranks, noise=noise)
        peers, told = Peers(range(ranks), nodes_of(ranks)), 0
        for at in range(0, steps, 1000):
            rows = source.block(min(1000, steps - at))
            told += sum(len(peers.observe(at + i, row, at_s=0.0)) for i, row in enumerate(rows))
        yield f"{ranks} healthy ranks, noise {noise:.0%}", "0 accusations", f"{told} in {steps:,} steps", told == 0


def job_section(options: argparse.Namespace) -> Rows:
    def times(seed: int, steps: int, noise: float) -> np.ndarray:
        rng = np.random.default_rng(seed)
        out = 0.2 * (1 + noise * rng.standard_normal(steps)) * (1 + 0.01 * np.arange(steps) / 1e5)
        out[rng.random(steps) < 1 / 400] *= 3
        out[::500] *= 1.5
        return out

    for noise in (0.007, 0.01, 0.02):
        watch = StepTimes()
        series = times(options.first_seed, options.steps, noise).tolist()
        told = sum(watch.observe(step, t, at_s=0.0) is not None for step, t in enumerate(series))
        yield f"healthy job, noise {noise:.1%}", "0 false events", f"{told} in {options.steps:,} steps", told == 0
        for slowdown in (0.05, 0.1):
            delays = []
            for seed in range(options.first_seed, options.first_seed + 2 * options.seeds):
                start = 200 + seed % 300
                series = times(seed + 1, start + 60, noise)
                series[start:] *= 1 + slowdown
                watch = StepTimes()
                steps = [s for s, t in enumerate(series.tolist()) if watch.observe(s, t, at_s=0.0)]
                delays.append(steps[0] - start + 1 if steps and steps[0] >= start else 999)
            text = f"median {np.median(delays):.0f}, p95 {np.percentile(delays, 95):.0f} steps"
            yield f"job +{slowdown:.0%}, noise {noise:.1%}", "<= 10 steps", text, bool(np.median(delays) <= 10)


def read(path: Path) -> tuple[list[int], list[float]]:
    with gzip.open(path, "rt") as file:
        rows = list(csv.reader(file))[1:]
    return [int(row[0]) for row in rows], [float(row[1]) for row in rows]


def pythia_section(options: argparse.Namespace) -> Rows:
    folder = options.data / "pythia_loss"
    labels = json.loads((folder / "labels.json").read_text())["runs"]
    runs: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.csv.gz")):
        runs.setdefault(path.name.split("_")[0], []).append(path)
    wanted: dict[str, list[dict[str, Any]]] = {}
    for name, run in labels.items():
        wanted.setdefault(name.split("_")[0], []).extend(run["events"])
    total, extra, hit, bumps = 0, [], 0, 0
    events = sum(len(run) for run in wanted.values())
    for name, paths in runs.items():
        segments = sorted((read(path) for path in paths), key=lambda segment: (segment[0][0], len(segment[0])))
        watch, found = LossWatch(), []
        for index, (steps, losses) in enumerate(segments):
            total += len(steps)
            if index:
                watch.restored(steps[0] - 1)
            for step, loss in zip(steps, losses, strict=True):
                found += watch.observe(step, loss, at_s=0.0)
        spikes = [e for e in found if e.kind in ("loss_spike", "bad_resume")]
        endings = {"loss_spike_recovered", "loss_diverged"}
        for event in wanted.get(name, []):
            kind = "loss_spike" if event["kind"] == "spike_transient" else "bad_resume"
            near = [e for e in spikes if e.kind == kind and 0 <= (e.step or 0) - event["step"] < 8]
            after = [e.kind for e in found if e.kind in endings and near and (e.step or 0) >= (near[0].step or 0)]
            right = bool(near) and (kind == "bad_resume" or after[:1] == ["loss_spike_recovered"])
            hit += right
            bumps += right and kind == "loss_spike"
            spikes = [e for e in spikes if e not in near]
        extra += [(name, e.step, e.sentence) for e in spikes]
        extra += [(name, e.step, e.sentence) for e in found if e.kind in ("loss_diverged", "loss_not_finite")]
    asked, text = f"all {events}, spikes as recovered", f"{hit} of {events} ({bumps} spikes)"
    yield "labelled events of real curves", asked, text, hit == events
    rate = len(extra) * 400_000 / total
    text = f"{rate:.2f} ({len(extra)} in {total:,} steps)"
    yield "other alarms per 400,000 steps", "<= 1", text, rate <= 1
    for name, step, sentence in extra:
        yield f"  {name} at {step}", "", sentence, True


def bloom_section(options: argparse.Namespace) -> Rows:
    watch, found = LossWatch(), []
    for line in (options.data / "bloom_spike_31214.log").read_text().splitlines():
        step, loss = re.search(r"iteration\s+(\d+)/", line), re.search(r"lm loss: (\S+)", line)
        if step and loss:
            found += watch.observe(int(step[1]), float(loss[1]), at_s=0.0)
    kinds = [e.kind for e in found]
    text = ", ".join(f"{e.kind} at {e.step}" for e in found)
    yield "a real spike from a log", "recovered", text, kinds == ["loss_spike", "loss_spike_recovered"]


def nab_section(options: argparse.Namespace) -> Rows:
    sys.path.insert(0, str(options.data))
    import nab_score

    root = options.data / "nab"
    items = []
    for name, windows in sorted(nab_score.load_windows(str(root)).items()):
        with (root / "data" / name).open() as file:
            rows = list(csv.reader(file))[1:]
        density = Density(name)
        scores = np.array([density.score(float(row[1])) for row in rows])
        items.append(([row[0] for row in rows], scores, [[nab_score.norm(t) for t in w] for w in windows]))
    swept = {profile: nab_score.score_corpus(items, profile) for profile in nab_score.PROFILES}
    best, threshold = swept["standard"]
    rest = ", ".join(f"{profile} {score:.1f}" for profile, (score, _) in swept.items() if profile != "standard")
    yield "NAB, threshold swept", ">= 68", f"{best:.1f} at {threshold:.2f} ({rest})", best >= 68
    halves = []
    for seed in range(options.first_seed, options.first_seed + 20):
        order = np.random.default_rng(seed).permutation(len(items))
        tuned, judged = order[: len(items) // 2], order[len(items) // 2 :]
        _, chosen = nab_score.score_corpus([items[i] for i in tuned], "standard")
        halves.append(at_threshold(nab_score, [items[i] for i in judged], chosen))
    text = f"{np.mean(halves):.1f} +- {np.std(halves):.1f}"
    yield "NAB, threshold of one half, scored on the other", ">= 64", text, bool(np.mean(halves) >= 64)


def at_threshold(nab_score: ModuleType, items: list[tuple[Any, ...]], threshold: float) -> float:
    """The standard score of one given threshold, as the scorer counts."""
    hit, miss, false = nab_score.PROFILES["standard"]
    total, windows_seen = 0.0, 0
    for stamps, scores, windows in items:
        which, value = nab_score.prep(stamps, windows)
        free = nab_score.probation(len(stamps))
        best = {int(w): -float(miss) for w in which[free:] if w >= 0}
        for row in np.flatnonzero(scores[free:] >= threshold) + free:
            if which[row] < 0:
                total += value[row] * false
            else:
                best[int(which[row])] = max(best[int(which[row])], value[row] * hit)
        total += sum(best.values())
        windows_seen += len(windows)
    return float(100 * (total + miss * windows_seen) / ((hit + miss) * windows_seen))


def cost_section(options: argparse.Namespace) -> Rows:
    for ranks in (8, 1024, 4096, 16384):
        peers, rows = Peers(range(ranks), nodes_of(ranks)), Compute(1, ranks, noise=0.01).block(60)
        for step, row in enumerate(rows[:30]):
            peers.observe(step, row, at_s=0.0)
        taken = []
        for step, row in enumerate(rows[30:], 30):
            begun = time.perf_counter()
            peers.observe(step, row, at_s=0.0)
            taken.append(time.perf_counter() - begun)
        busy = float(np.median(taken))
        yield f"one step of {ranks} ranks, each second", "< 50 % of a core", f"{busy:.2%} of a core", busy < 0.5


SECTIONS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "ranks": ranks_section,
    "nodes": nodes_section,
    "healthy": healthy_section,
    "job": job_section,
    "pythia": pythia_section,
    "bloom": bloom_section,
    "nab": nab_section,
    "cost": cost_section,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--steps", type=int, default=100_000, help="of healthy replays")
    parser.add_argument("--seeds", type=int, default=100, help="slow ranks a case")
    parser.add_argument("--first-seed", type=int, default=0)
    here = Path(__file__).resolve().parents[2] / "shared/data/watch"
    parser.add_argument("--data", type=Path, default=here)
    options = parser.parse_args()
    missed = 0
    print("| what | asked | measured | |\n|---|---|---|---|", flush=True)
    for name in options.only:
        for what, asked, measured, kept in SECTIONS[name](options):
            missed += not kept
            print(f"| {what} | {asked} | {measured} | {'' if kept else 'MISSED'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

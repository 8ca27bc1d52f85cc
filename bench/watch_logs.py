"""How often is the diagnosis of a log right: owner, action, and label, and how long does a large log take?

Without arguments: the labelled excerpts of `shared/data/watch/log_excerpts.jsonl`, if they are there, by owner, action,
label, and the macro F1 of labels with its bootstrap interval (2,000 draws of excerpts); then a made-up log of --mib
MiB, its lines a second against `grep -c` of one word in the same file. --misses lists what is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from perdure.watcher.logs.diagnose import diagnose
from perdure.watcher.logs.reading import lines_of, read_log

Pair = tuple[str, str]


def macro_f1(pairs: Sequence[Pair]) -> float:
    """Mean over the true labels of their F1; pairs are (true, said)."""
    scores = []
    for label in {true for true, _ in pairs}:
        hits = sum(true == said == label for true, said in pairs)
        named = sum(said == label for _, said in pairs)
        there = sum(true == label for true, _ in pairs)
        scores.append(2 * hits / (named + there))
    return sum(scores) / len(scores)


def interval(pairs: Sequence[Pair], *, draws: int = 2000, seed: int = 1) -> tuple[float, float]:
    """The 95 % bootstrap interval of the macro F1."""
    dice = random.Random(seed)
    found = sorted(macro_f1([dice.choice(pairs) for _ in pairs]) for _ in range(draws))
    return found[int(0.025 * draws)], found[int(0.975 * draws)]


def score(path: Path, *, misses: bool) -> None:
    """Diagnose every excerpt and say how often that is right."""
    labels: list[Pair] = []
    owners = actions = 0
    for row in map(json.loads, path.read_text().splitlines()):
        said = diagnose(lines_of(row["text"], file=row["id"]))
        label, action = str(said.label or "none"), str(said.action or "none")
        labels.append((row["label"], label))
        owners += str(said.owner) == row["at_fault"]
        actions += action == row["action"]
        if misses and (label, action, str(said.owner)) != (row["label"], row["action"], row["at_fault"]):
            print(f"{row['id']}: {label}/{said.owner}/{action}, is {row['label']}/{row['at_fault']}/{row['action']}")
    n = len(labels)
    low, high = interval(labels)
    right = sum(true == said for true, said in labels)
    print(f"{n} excerpts: owner {owners / n:.3f}, action {actions / n:.3f}, label {right / n:.3f}")
    print(f"label macro F1 {macro_f1(labels):.3f} [{low:.3f}, {high:.3f}]")


def large(mib: int) -> None:
    """The time of one large log, beside one that only counts lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        with path.open("w") as file:
            n = 0
            while file.tell() < mib << 20:
                n += 1
                head = f"[rank{n % 64}]: 2026-01-01 00:00:{n % 60:02d},000 INFO iteration {n}"
                file.write(f"{head} | loss: {2 + n % 7 / 100} | step time: {0.5 + n % 5 / 1000}\n")
            file.write("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
        start = time.perf_counter()
        said = diagnose(read_log(path))
        ours = time.perf_counter() - start
        start = time.perf_counter()
        subprocess.run(["grep", "-c", "ERROR", path], stdout=subprocess.DEVNULL, check=False)
        grep = time.perf_counter() - start
        print(f"{mib} MiB, {n} lines: {said.label}; {ours / grep:.0f} times as long as grep")


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--excerpts", type=Path, default=Path(__file__).parents[2] / "shared/data/watch/log_excerpts.jsonl"
    )
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--misses", action="store_true")
    args = parser.parse_args()
    if args.excerpts.exists():
        score(args.excerpts, misses=args.misses)
    else:
        print(f"there are no excerpts at {args.excerpts}; name some with --excerpts", file=sys.stderr)
    large(args.mib)
    return 0


if __name__ == "__main__":
    sys.exit(main())

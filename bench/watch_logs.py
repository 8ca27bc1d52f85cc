"""How often is the diagnosis of a log right: owner, action, and label, and how long does a large log take?

Without arguments: the labelled excerpts of `shared/data/watch/log_excerpts.jsonl`, if they are there, by owner, action,
label with 95 % Wilson intervals, and the macro F1 of labels with its bootstrap interval (2,000 draws of excerpts);
then a made-up log of --mib MiB, its lines a second against `grep -c` of one word in the same file. --excerpts names
other files, or folders of them: JSON lines with id, text, label, at_fault and action, where the label of a healthy log
is "none". Of healthy ones it says how many got a label (a false alarm), and how many of those only a warning.
--misses lists what is wrong, --kinds counts it by label.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perdure.watcher.logs.diagnose import diagnose
from perdure.watcher.logs.reading import lines_of, read_log

Pair = tuple[str, str]
Said = tuple[str, str, str]


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


def share(right: int, of: int) -> str:
    """A share with its 95 % Wilson interval."""
    z = 1.96
    mean, over = right / of, 1 + z * z / of
    middle = (mean + z * z / (2 * of)) / over
    half = z * math.sqrt(mean * (1 - mean) / of + z * z / (4 * of * of)) / over
    return f"{mean:.3f} [{middle - half:.3f}, {middle + half:.3f}]"


def rows_of(paths: Sequence[Path]) -> list[dict[str, str]]:
    """The rows of files, or of all files *.jsonl in folders."""
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line.strip()]


def score(rows: Sequence[dict[str, str]], *, misses: bool, kinds: bool) -> None:
    """Diagnose every excerpt and say how often that is right."""
    said_of: list[tuple[dict[str, str], Said]] = []
    for row in rows:
        said = diagnose(lines_of(row["text"], file=row["id"]))
        answer = (str(said.label or "none"), str(said.owner), str(said.action or "none"))
        said_of.append((row, answer))
        true = (row["label"], row["at_fault"], row["action"])
        if misses and answer != true:
            print(f"{row['id']}: {'/'.join(answer)}, is {'/'.join(true)}")
    healthy = [said for row, said in said_of if row["label"] == "none"]
    faults = [(row, said) for row, said in said_of if row["label"] != "none"]
    if healthy:
        alarms = [said for said in healthy if said[0] != "none"]
        warnings = sum(said[2] == "warn" for said in alarms)
        print(f"{len(healthy)} healthy: {len(alarms)} false alarms, {warnings} of them only warnings")
    if faults:
        n = len(faults)
        owners = sum(said[1] == row["at_fault"] for row, said in faults)
        actions = sum(said[2] == row["action"] for row, said in faults)
        labels = [(row["label"], said[0]) for row, said in faults]
        right = sum(true == said for true, said in labels)
        low, high = interval(labels)
        print(f"{n} faults: owner {share(owners, n)}, action {share(actions, n)}, label {share(right, n)}")
        print(
            f"label macro F1 {macro_f1(labels):.3f} [{low:.3f}, {high:.3f}] over {len({t for t, _ in labels})} labels"
        )
    if kinds:
        wrong = Counter(f"{row['label']} taken for {said[0]}" for row, said in said_of if said[0] != row["label"])
        for kind, count in wrong.most_common():
            print(f"{count:4d}  {kind}")


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
        "--excerpts",
        type=Path,
        nargs="+",
        default=[Path(__file__).parents[2] / "shared/data/watch/log_excerpts.jsonl"],
    )
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--kinds", action="store_true")
    args = parser.parse_args()
    there = [path for path in args.excerpts if path.exists()]
    for path in set(args.excerpts) - set(there):
        print(f"there are no excerpts at {path}; name some with --excerpts", file=sys.stderr)
    if there:
        score(rows_of(there), misses=args.misses, kinds=args.kinds)
    if args.mib:
        large(args.mib)
    return 0


if __name__ == "__main__":
    sys.exit(main())

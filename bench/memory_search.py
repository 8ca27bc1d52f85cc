"""How long does a search take at 2,000, 100,000 and 1,000,000 facts, against FTS5 over the same passages?

The memory searches as it always does: it looks for news, ranks passages by words, neighbours and sections, and reads
ten facts from the ledger. The peer is one FTS5 query (stop words removed, OR, bm25, ten rows of text). The facts are
conversations made up from words with a Zipf distribution, in which the turns of a stretch share words; a question is
made of three to six words of one fact, with question words around them. One thread.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

from measure import arguments, machine
from perdure.memory import Memory

CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"
FILLER = [
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "is",
    "was",
    "for",
    "with",
    "that",
    "my",
    "our",
    "on",
    "at",
    "it",
    "we",
    "they",
    "have",
    "had",
]
ASKED = ("Where did {0} {1} the {2}?", "What does {0} say about {1} and {2}?", "When was the {0} {1} with {2}?")
STOP = frozenset([*FILLER, "where", "did", "what", "does", "say", "about", "when"])


def vocabulary(size: int, chance: random.Random) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < size:
        parts = (chance.choice(CONSONANTS) + chance.choice(VOWELS) for _ in range(chance.randint(2, 4)))
        words["".join(parts) + chance.choice(["", "n", "r", "s", "t"])] = None
    return list(words)


def facts(count: int, *, seed: int) -> Iterator[tuple[str, str, str, float]]:
    """(text, speaker, source, when) of each fact."""
    chance = random.Random(seed)
    words = vocabulary(40_000, chance)
    weights = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(len(words))))
    names = [word.capitalize() for word in words[200:600]]
    made = 0
    while made < count:
        pair, source = chance.sample(names, 2), f"talk {made // 400}"
        subject = chance.choices(words, cum_weights=weights, k=6)
        for turn in range(min(count - made, chance.randint(6, 24))):
            said = (
                chance.choices(words, cum_weights=weights, k=6)
                + chance.sample(subject, 2)
                + chance.choices(FILLER, k=5)
            )
            chance.shuffle(said)
            yield " ".join(said).capitalize() + ".", pair[turn % 2], source, 1.7e9 + made * 60.0
            made += 1


def questions(count: int, *, facts_there: int, seed: int) -> list[str]:
    chance = random.Random(seed + 1)
    places = sorted(chance.sample(range(facts_there), min(count, facts_there)))
    texts = [each[0] for each in _at(facts(facts_there, seed=seed), places)]
    made = []
    for text in texts:
        words = [word for word in text.lower().rstrip(".").split() if word not in FILLER]
        some = chance.sample(words, min(len(words), chance.randint(3, 6)))
        made.append(chance.choice(ASKED).format(*some[:3]) + " " + " ".join(some[3:]))
    chance.shuffle(made)
    return made


def _at(all_of: Iterator[tuple[str, str, str, float]], places: list[int]) -> Iterator[tuple[str, str, str, float]]:
    wanted = set(places)
    return (each for at, each in enumerate(all_of) if at in wanted)


def timed(work: Callable[[str], object], asked: list[str]) -> tuple[float, float]:
    """Median and 95th percentile in milliseconds."""
    taken = []
    for question in asked:
        start = time.perf_counter()
        work(question)
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken), sorted(taken)[int(0.95 * (len(taken) - 1))]


def fts5(file: pathlib.Path, count: int, seed: int) -> sqlite3.Connection:
    db = sqlite3.connect(file)
    db.execute("CREATE VIRTUAL TABLE t USING fts5(body, tokenize = 'porter unicode61 remove_diacritics 2')")
    db.executemany("INSERT INTO t(body) VALUES (?)", ((text,) for text, *_ in facts(count, seed=seed)))
    db.commit()
    return db


def tell(memory: Memory, count: int, seed: int) -> None:
    items = (
        {"text": text, "speaker": speaker, "source": source, "at": at}
        for text, speaker, source, at in facts(count, seed=seed)
    )
    while some := list(itertools.islice(items, 5000)):
        memory.observe_many(some)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--facts", type=int, nargs="+", default=[2_000, 100_000, 1_000_000])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    args = parser.parse_args()
    rows = []
    for count in args.facts:
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as folder:
            asked = questions(args.questions, facts_there=count, seed=args.seed)
            peer = fts5(pathlib.Path(folder) / "peer.db", count, args.seed)
            sql = "SELECT body FROM t WHERE t MATCH ? ORDER BY rank LIMIT 10"

            def by_fts5(question: str, peer: sqlite3.Connection = peer, sql: str = sql) -> object:
                words = [word for word in question.lower().replace("?", "").split() if word not in STOP]
                return peer.execute(sql, (" OR ".join(f'"{word}"' for word in words),)).fetchall()

            with Memory(pathlib.Path(folder) / "memory") as memory:
                tell(memory, count, args.seed)
                start = time.perf_counter()
                memory.search("the first search makes the index")
                built = time.perf_counter() - start
                sides = {"perdure": memory.search, "FTS5": by_fts5}
                for side in sides:
                    timed(sides[side], asked[:20])
                half = len(asked) // 2  # in turns, so that both meet the same load
                parts = {side: [timed(work, asked[:half])] for side, work in sides.items()}
                for side, work in reversed(sides.items()):
                    parts[side].append(timed(work, asked[half:]))
                with Memory(pathlib.Path(folder) / "memory") as again:
                    start = time.perf_counter()
                    again.search(asked[0])
                    opened = (time.perf_counter() - start) * 1e3
                size = sum(f.stat().st_size for f in (pathlib.Path(folder) / "memory").rglob("index.db"))
            peer.close()
        row = {
            "facts": count,
            "index_s": round(built, 2),
            "index_bytes_per_fact": round(size / count),
            "first_search_ms": round(opened, 1),
        }
        for side, two in parts.items():
            row |= {
                f"{side} p50 ms": round(statistics.mean(e[0] for e in two), 3),
                f"{side} p95 ms": round(max(e[1] for e in two), 3),
            }
        row["ratio of p50"] = round(row["perdure p50 ms"] / row["FTS5 p50 ms"], 3)
        rows.append(row)
        if not args.json:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if args.json:
        print(json.dumps({"rows": rows, "machine": machine()}))


if __name__ == "__main__":
    main()

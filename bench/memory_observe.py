"""How long does telling something take, until it is durable?

`Memory.observe` of one sentence against one append of as many bytes and fsync to a file in the same folder, taking
turns, at each of the sizes that the memory has grown to. With ``--processes N`` also N processes that observe at once,
against as many that let SQLite's own busy handler order them: what one waits at worst, and how much all get done.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pathlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

from measure import Stopwatch, Turn, arguments, report, take_turns
from perdure.memory import Memory

OURS = "perdure Memory.observe"
PEER = "append + fsync"
FILL = 20_000


def sentences(seed: int) -> Iterator[str]:
    for number in itertools.count():
        yield f"Person {seed}-{number} moved to house {number * 7919 % 100_003} in the month {number % 12 + 1}."


def fill(memory: Memory, facts: int, words: Iterator[str]) -> None:
    have = memory.status().facts
    while have < facts:
        some = min(FILL, facts - have)
        memory.observe_many([{"text": next(words), "source": "fill", "at": float(have + at)} for at in range(some)])
        have += some


def observe_turn(memory: Memory, words: Iterator[str], *, each: int) -> Turn:
    numbers = itertools.count(2_000_000_000)

    def turn() -> Mapping[str, float]:
        taken = []
        for _ in range(each):
            text, at = next(words), float(next(numbers))
            watch = Stopwatch()
            memory.observe(text, source="bench", at=at)
            taken.append(watch.s())
        return {"p50 of one": statistics.median(taken)}

    return turn


def append_turn(folder: pathlib.Path, words: Iterator[str], *, each: int) -> Turn:
    fd = os.open(folder / "appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def turn() -> Mapping[str, float]:
        taken = []
        for _ in range(each):
            line = next(words).encode() + b"\n"
            watch = Stopwatch()
            os.write(fd, line)
            os.fsync(fd)
            taken.append(watch.s())
        return {"p50 of one": statistics.median(taken)}

    return turn


def by_turns(folder: pathlib.Path) -> Callable[[str], object]:
    memory = Memory(folder / "many")
    return memory.observe


def by_busy_handler(folder: pathlib.Path) -> Callable[[str], object]:
    db = sqlite3.connect(folder / "plain.db", timeout=60.0, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE IF NOT EXISTS told(id INTEGER PRIMARY KEY, body)")

    def keep(text: str) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO told(body) VALUES (?)", (text,))
        db.execute("COMMIT")

    return keep


def keep_for(
    make: Callable[[pathlib.Path], Callable[[str], object]], folder: pathlib.Path, seed: int, until: float, out: object
) -> None:
    keep = make(folder)
    waits = []
    for text in sentences(seed):
        if time.time() > until:
            break
        watch = Stopwatch()
        keep(text)
        waits.append(watch.s())
    out.put(waits)  # type: ignore[attr-defined]


def crowd_turn(
    make: Callable[[pathlib.Path], Callable[[str], object]], folder: pathlib.Path, *, processes: int, for_s: float
) -> Turn:
    make(folder)
    spawn = multiprocessing.get_context("spawn")

    def turn() -> Mapping[str, float]:
        out = spawn.Queue()
        until = time.time() + for_s + 3.0  # they need a while to start
        crowd = [spawn.Process(target=keep_for, args=(make, folder, each, until, out)) for each in range(processes)]
        for each in crowd:
            each.start()
        waits = [out.get(timeout=60) for _ in crowd]
        for each in crowd:
            each.join(60)
        together = sorted(itertools.chain.from_iterable(waits))
        return {
            f"{processes} processes: one of all": sum(map(len, waits)) and (for_s / sum(map(len, waits))),
            f"{processes} processes: 99 of 100 take at most": together[int(len(together) * 0.99)],
            f"{processes} processes: the longest wait": together[-1],
        }

    return turn


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--sizes", default="1000,100000", help="facts to grow to; add 1000000 for the whole claim")
    parser.add_argument("--each", type=int, default=100, help="calls in a turn, of which the median is taken")
    parser.add_argument("--processes", type=int, default=0, help="also as many writers at once")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name:
        folder = pathlib.Path(name)
        measured = {}
        for size in map(int, args.sizes.split(",")):
            with Memory(folder / "memory") as memory:
                fill(memory, size, sentences(size))
                sides = {
                    OURS: observe_turn(memory, sentences(-size), each=args.each),
                    PEER: append_turn(folder, sentences(-size), each=args.each),
                }
                for metric, times in take_turns(sides, rounds=args.rounds).items():
                    measured[f"{metric}, {size} facts"] = times
        if args.processes:
            sides = {
                OURS: crowd_turn(by_turns, folder, processes=args.processes, for_s=3.0),
                "SQLite's busy handler": crowd_turn(by_busy_handler, folder, processes=args.processes, for_s=3.0),
            }
            measured |= take_turns(sides, rounds=max(2, args.rounds // 3))
        report(__doc__.splitlines()[0], measured, ours=dict.fromkeys(measured, OURS), facts={}, as_json=args.json)


if __name__ == "__main__":
    main()

"""``perdure memory bench``: how fast a memory is on this machine and this disk."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from perdure.cli.memory_flags import add_place, home
from perdure.cli.memory_lines import print_json, print_table

__all__ = ["add_parser", "main"]

_NAMES = ("Anna", "Ben", "Carla", "Dmitri", "Eun-ji", "Farid", "Grace", "Hugo")
_SAYINGS = ("lives in", "works for", "was born in", "likes", "drives to", "studies", "plays", "writes about")
_THINGS = ("Lisbon", "a bakery", "1984", "tea", "the sea", "history", "the cello", "birds", "Porto", "chess")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure how fast a memory is here",
        description="Measure in a temporary folder beside the memories, so on the same disk: what one observe takes, "
        "against appending the same bytes to a plain file and making them durable; and what a search takes among N "
        "facts. The texts are made up. It says how it stands here, not how well it finds.",
    )
    parser.add_argument("--facts", type=int, default=2000, metavar="N", help="how many facts to search in (2000)")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Measure."""
    import tempfile

    from perdure.errors import CallError
    from perdure.memory import Memory

    if not 100 <= args.facts <= 1_000_000:
        raise CallError("--facts must be from 100 to 1,000,000")
    root = home(args)
    root.mkdir(parents=True, exist_ok=True)
    texts = [_text(n) for n in range(args.facts)]
    with tempfile.TemporaryDirectory(dir=root, prefix=".bench-") as folder:
        append_s = _appends(Path(folder) / "plain", texts[:100])
        with Memory(Path(folder) / "memory") as memory:
            memory.search("nobody")
            observe_s = _median(lambda n: memory.observe(texts[n]), 100)
            memory.observe_many([{"text": text} for text in texts[100:]])
            memory.search("nobody")  # the index takes them in
            search_s = _median(lambda n: memory.search(f"Where is {_text(n * 7 % args.facts)}"), 50)
    found = {
        "facts": args.facts,
        "append_s": append_s,
        "observe_s": observe_s,
        "observe_over_append": observe_s / append_s,
        "search_s": search_s,
    }
    if args.json:
        print_json(found)
        return 0
    rows = [
        ("a durable append to a plain file", f"{append_s * 1e3:.2f} ms"),
        ("observe", f"{observe_s * 1e3:.2f} ms, {observe_s / append_s:.1f} times that"),
        (f"search among {args.facts:,} facts", f"{search_s * 1e3:.2f} ms"),
    ]
    print_table(("median of", "takes"), rows)
    return 0


def _text(n: int) -> str:
    name = f"{_NAMES[n % 8]} {chr(65 + n // 8 % 26)}. {n // 208}"
    return f"{name} {_SAYINGS[n // 3 % 8]} {_THINGS[n // 5 % 10]}."


def _appends(path: Path, texts: list[str]) -> float:
    with open(path, "ab", buffering=0) as file:

        def append(n: int) -> None:
            file.write(texts[n].encode())
            os.fdatasync(file.fileno())

        return _median(append, len(texts))


def _median(work: Callable[[int], object], times: int) -> float:
    taken = []
    for n in range(times):
        began = time.perf_counter()
        work(n)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)

"""How many nested questions are answered from facts alone, without a model?

Reads rows of MemoryAgentBench's Conflict_Resolution split as JSON (``context``: one numbered fact a line, the later the
newer; ``questions``; ``answers``), tells each fact to a memory of its own and follows each question. Scored as there:
the normalised gold answer lies within what is given as the answer. Prints counts and a ratio to what a ranked search
finds with its first fact.

    python bench/memory_hops.py FILE --source factconsolidation_mh_6k
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import string
import sys
import tempfile
import time
from pathlib import Path

from perdure.memory.hops import Chain, follow
from perdure.memory.ledger import Ledger
from perdure.memory.lexical import LexicalIndex
from perdure.memory.mentions import IndexFinder
from perdure.memory.records import Role


def normal(text: str) -> str:
    """As the benchmark compares: no case, no punctuation, no articles, single spaces."""
    text = "".join(each for each in text.lower() if each not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def facts_of(context: str) -> list[str]:
    """The numbered facts, in order."""
    return [match[1] for match in re.finditer(r"^\d+\. (.+?)\s*$", context, re.MULTILINE)]


def right(text: str, golds: list[str]) -> bool:
    """Whether one of the right answers lies within a text."""
    return any(normal(gold) in normal(text) for gold in golds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--source", default="_mh_", help="rows whose name has this in it")
    parser.add_argument("--show", action="store_true", help="show each question with its chain")
    parser.add_argument("--sure", type=float, default=0.0, help="count only answers of this score at least")
    chosen = parser.parse_args()
    for row in json.loads(chosen.file.read_text()):
        if chosen.source in row["metadata"]["source"]:
            measure(row, show=chosen.show, sure=chosen.sure)
    return 0


def measure(row: dict[str, object], *, show: bool, sure: float) -> None:
    name = row["metadata"]["source"]  # type: ignore[index]
    questions: list[str] = row["questions"]  # type: ignore[assignment]
    golds: list[list[str]] = row["answers"]  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.db")
        index = LexicalIndex(Path(folder) / "index.db", ledger)
        facts = facts_of(str(row["context"]))
        ledger.append(
            "\n".join(facts),
            source="bench",
            speaker="",
            role=Role.USER,
            observed=("2020-01-01T00:00:00+00:00", 1577836800.0),
            key=None,
            dated=False,
            meta=None,
        )
        index.search("warm", limit=1)
        exact = within = plain = given = several = harmed = 0
        took: list[float] = []
        for question, gold in zip(questions, golds, strict=True):
            began = time.perf_counter()
            chains = follow(question, IndexFinder(ledger, index))
            took.append(time.perf_counter() - began)
            best: Chain | None = chains[0] if chains and chains[0].score >= sure else None
            given += best is not None
            exact += best is not None and right(best.answer, gold)
            within += best is not None and right(best.facts[-1].text, gold)
            if best is not None and best.sure:
                several += 1
                harmed += not right(best.answer, gold)
            first = index.search(question, limit=1)
            plain += bool(first) and right(ledger.facts([first[0][0]])[first[0][0]].text, gold)
            if show:
                mark = "ok " if best and right(best.answer, gold) else "-- "
                print(mark, question, "|", gold[0])
                for chain in chains[:2]:
                    print(
                        "      ",
                        chain.score,
                        chain.doubts,
                        " > ".join(each.text for each in chain.facts),
                        "|",
                        chain.unexplained,
                    )
        index.close()
        ledger.close()
    count = len(questions)
    took.sort()
    print(
        f"{name}: {len(facts)} facts, {count} questions: right {exact} ({exact / count:.0%}), within the last fact"
        f" {within}, given {given}; sure chains {several}, of them wrong {harmed}; the first fact"
        f" of ranked search {plain}; p50 {statistics.median(took) * 1e3:.1f} ms,"
        f" p95 {took[int(0.95 * count)] * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())

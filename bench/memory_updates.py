"""Updates in free prose, without a model: does what holds now come first, and what it replaced not?

    python bench/memory_updates.py bench/data/updates_dev.jsonl [--first 80] [--misses]
    python bench/memory_updates.py bench/data/updates_dev.jsonl --unanswerable bench/data/unanswerable.jsonl

A dialogue is told turn by turn, then its question is asked. It is right if all of ``current`` stand in the text of the
first current fact of the answer (of the first three, for ``additive``), and the first one does not tell an ``outdated``
value without a current one. So whatever told the outdated value is superseded, or ranked below. With
``--unanswerable``, questions about what nobody in a dialogue spoke of are asked beside: the share that is not answered.
With ``--links``, how many of the statements that settling marks as superseded told an outdated value.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from perdure.memory import Memory, State


def right(case: dict[str, Any], folder: str) -> tuple[bool, str]:
    """Whether a case is answered, and the first facts of the answer."""
    with Memory(folder) as memory:
        for turn in case["turns"]:
            memory.observe(turn["text"], at=turn["at"], speaker=turn["speaker"], source=case["id"])
        facts = [hit.fact for hit in memory.ask(case["question"]).hits if hit.fact.state is State.CURRENT]
    first = facts[: 3 if case["kind"] == "additive" else 1]
    told = "\n".join(fact.text for fact in first)
    good = bool(first) and all(each in told for each in case["current"])
    if first and any(each in first[0].text for each in case["outdated"]):
        good = good and any(each in first[0].text for each in case["current"])
    return good, " / ".join(fact.text for fact in facts[:3])


def report(cases: list[dict[str, Any]], name: str, *, misses: bool) -> None:
    """Print how many are right, by kind."""
    good: Counter[str] = Counter()
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            fine, shown = right(case, folder)
        good[case["kind"]] += fine
        if misses and not fine:
            print(f"  {case['id']} {case['kind']}: {case['question']} {case['current']} | {shown}")
    count = Counter(case["kind"] for case in cases)
    kinds = ", ".join(f"{kind} {good[kind]}/{count[kind]}" for kind in sorted(count))
    print(
        f"{name}: {sum(good.values())}/{len(cases)} = {100 * sum(good.values()) / len(cases):.0f} % ({kinds})",
        flush=True,
    )


def unanswered(cases: list[dict[str, Any]], asked: list[dict[str, str]], *, misses: bool) -> None:
    """Print how many of the questions about what nobody spoke of are not answered."""
    told = {case["id"]: case for case in cases}
    asked = [each for each in asked if each["case"] in told]
    silent = 0
    for each in asked:
        with tempfile.TemporaryDirectory() as folder, Memory(folder) as memory:
            for turn in told[each["case"]]["turns"]:
                memory.observe(turn["text"], at=turn["at"], speaker=turn["speaker"], source=each["case"])
            answer = memory.ask(each["question"])
        silent += not answer.hits
        if misses and answer.hits:
            print(f"  {each['case']}: {each['question']} | {answer.hits[0].fact.text}")
    if asked:
        print(f"not answered where nobody spoke of it: {silent}/{len(asked)} = {100 * silent / len(asked):.0f} %")


def replaced(cases: list[dict[str, Any]], *, misses: bool) -> None:
    """Print how many statements settling marks as superseded that told an outdated value, and how many there are."""
    right = marked = wanted = 0
    for case in cases:
        with tempfile.TemporaryDirectory() as folder, Memory(folder) as memory:
            for turn in case["turns"]:
                memory.observe(turn["text"], at=turn["at"], speaker=turn["speaker"], source=case["id"])
            memory.settle()
            facts = [memory.fact(number) for number in range(1, memory.status().facts + 1)]
        for fact in facts:
            old = any(each in fact.text for each in case["outdated"])
            old = old and not any(each in fact.text for each in case["current"])
            fair = old or (case["kind"] == "return" and any(each in fact.text for each in case["current"]))
            wanted += old
            marked += fact.state is State.SUPERSEDED
            right += fact.state is State.SUPERSEDED and fair
            if misses and fact.state is State.SUPERSEDED and not fair:
                print(f"  {case['id']} superseded: {fact.text}")
    print(f"superseded by rules: {right} of {marked} rightly; {wanted} statements tell what was outdated")


def main() -> None:
    """Print one line for the part that rules are made on and one for the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--first", type=int, default=0, help="how many the rules were made on (0: all are one part)")
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--unanswerable", type=Path, help="questions to which nobody told the answer")
    parser.add_argument("--links", action="store_true", help="count what settling marks as superseded")
    options = parser.parse_args()
    opened = lzma.open if options.file.suffix == ".xz" else open
    with opened(options.file, "rt", encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    report(cases[: options.first or None], f"first {options.first or len(cases)}", misses=options.misses)
    if options.first:
        report(cases[options.first :], "the others", misses=False)
    if options.unanswerable is not None:
        asked = [json.loads(line) for line in options.unanswerable.read_text(encoding="utf-8").splitlines()]
        unanswered(cases, asked, misses=options.misses)
    if options.links:
        replaced(cases, misses=options.misses)


if __name__ == "__main__":
    main()

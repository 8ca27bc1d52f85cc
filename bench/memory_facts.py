"""FactConsolidation, single hop, without a model: is the answer in the first current fact that is found?

    python bench/memory_facts.py ../shared/data/memory/factconsolidation.json [--chunk 4000]

The facts are told in pieces of at most ``--chunk`` characters, cut at lines; scored as the benchmark does: without
case, marks and articles, the answer must be within the text.
"""

from __future__ import annotations

import argparse
import json
import re
import string
import tempfile
import time
from pathlib import Path

from perdure.memory import Memory


def normal(text: str) -> str:
    """Lower case, without marks and articles."""
    text = "".join(each for each in text.lower() if each not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def pieces(text: str, size: int) -> list[str]:
    """The text in pieces of at most ``size`` characters, cut at lines."""
    found: list[str] = []
    held: list[str] = []
    for line in text.splitlines(keepends=True):
        if held and sum(map(len, held)) + len(line) > size:
            found.append("".join(held))
            held = []
        held.append(line)
    return [*found, "".join(held)]


def main() -> None:
    """Print one line a set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--chunk", type=int, default=4000)
    parser.add_argument("--misses", action="store_true")
    options = parser.parse_args()
    for row in json.loads(options.file.read_text()):
        name = row["metadata"]["source"]
        if "_sh_" not in name:
            continue
        with tempfile.TemporaryDirectory() as folder, Memory(folder) as memory:
            began = time.perf_counter()
            for at, piece in enumerate(pieces(row["context"], options.chunk)):
                memory.observe(piece, source="facts", at=1_700_000_000 + at)
            told_s = time.perf_counter() - began
            memory.search("anything")
            settled_s = time.perf_counter() - began - told_s
            right = within = 0
            began = time.perf_counter()
            for question, answers in zip(row["questions"], row["answers"], strict=True):
                hits = memory.search(question, limit=5)
                first = normal(hits[0].fact.text) if hits else ""
                good = any(normal(each) in first for each in answers)
                right += good
                within += any(normal(each) in normal(hit.fact.text) for hit in hits[:3] for each in answers)
                if not good and options.misses:
                    print("  ", question, answers, "|", " / ".join(hit.fact.text for hit in hits[:3]))
            each_s = (time.perf_counter() - began) / len(row["questions"])
        count = len(row["questions"])
        print(
            f"{name}: first {100 * right / count:.0f} %, in three {100 * within / count:.0f} %;"
            f" settling / telling {settled_s / told_s:.2f}, a search / settling {each_s / settled_s:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

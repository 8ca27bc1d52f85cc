"""Which lines are of one kind: Drain, an online miner of log templates.

A line is cut into words, those with digits, addresses and paths are masked, and it goes down a tree of fixed depth:
first by the number of its words, then by its first words. At the leaf it joins the template that agrees with it in at
least `SIMILAR` of its words; words that differ become a wildcard. (P. He, J. Zhu, Z. Zheng, M. R. Lyu: Drain, ICWS
2017.) What is rare tells most: a template that one rank has and its peers do not weighs more than one on all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.watcher.logs.reading import Line

__all__ = ["SIMILAR", "Miner", "Template", "masked", "novel"]

SIMILAR = 0.5
_DEPTH = 2
_BRANCHES = 100
_WORDS = 40
_ANY = "<*>"

_MASKS = (
    (re.compile(r"https?://\S+|s3://\S+|gs://\S+"), "<url>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<hex>"),
    (re.compile(r"(?<![\w.])(?:/[\w.@+-]+){2,}/?"), "<path>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b(?=[a-f]*\d)[0-9a-f]{12,}\b"), "<id>"),
    (re.compile(r"[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", re.IGNORECASE), "<n>"),
)


def masked(text: str) -> str:
    """``text`` with numbers, addresses, paths and ids masked.

    >>> masked("rank 3 wrote 12.5 MB to /data/run/7 at 0xff")
    'rank <n> wrote <n> MB to <path> at <hex>'
    """
    for pattern, word in _MASKS:
        text = pattern.sub(word, text)
    return text


@dataclass(slots=True)
class Template:
    """A kind of line: its words, wildcards among them, and how often each rank has written it."""

    number: int
    words: list[str]
    count: int = 0
    ranks: Counter[int | None] = field(default_factory=Counter)
    first: int = 0
    "The place, among all lines seen, of its first."

    def __str__(self) -> str:
        return " ".join(self.words)


@dataclass(slots=True)
class _Node:
    below: dict[str, _Node] = field(default_factory=dict)
    templates: list[Template] = field(default_factory=list)


class Miner:
    """Templates of all lines that were added."""

    def __init__(self, *, similar: float = SIMILAR) -> None:
        self._similar = similar
        self._root: dict[int, _Node] = {}
        self._seen = 0
        self.templates: list[Template] = []

    def add(self, text: str, *, rank: int | None = None) -> Template:
        """The template of a line, which learns from it.

        >>> miner = Miner()
        >>> miner.add("worker 3 started on node a") is miner.add("worker 4 started on node b")
        True
        >>> str(miner.templates[0])
        'worker <n> started on node <*>'
        """
        words = masked(text).split()[:_WORDS]
        leaf = self._leaf(words)
        found = self._nearest(leaf.templates, words)
        if found is None:
            found = Template(len(self.templates), words, first=self._seen)
            leaf.templates.append(found)
            self.templates.append(found)
        else:
            found.words = [a if a == b else _ANY for a, b in zip(found.words, words, strict=True)]
        found.count += 1
        found.ranks[rank] += 1
        self._seen += 1
        return found

    def _leaf(self, words: Sequence[str]) -> _Node:
        node = self._root.setdefault(len(words), _Node())
        for word in words[:_DEPTH]:
            key = _ANY if "<" in word else word
            if key not in node.below and len(node.below) >= _BRANCHES:
                key = _ANY
            node = node.below.setdefault(key, _Node())
        return node

    def _nearest(self, templates: Sequence[Template], words: Sequence[str]) -> Template | None:
        best, most = None, -1.0
        for each in templates:
            same = sum(a == b for a, b in zip(each.words, words, strict=True)) / max(len(words), 1)
            if same > most:
                best, most = each, same
        return best if most >= self._similar else None


def novel(lines: Sequence[Line], *, most: int = 5) -> list[Line]:
    """The lines that stand out, the strongest first: of rare templates, on few of the ranks, late in the log."""
    miner = Miner()
    known = [(line, miner.add(line.text, rank=line.rank)) for line in lines if line.text.strip()]
    ranks = max(len({line.rank for line in lines}), 1)
    scores = []
    for n, (_, template) in enumerate(known):
        if template.first == n:
            spread = len(template.ranks) / ranks
            scores.append(((n + 1) / len(known) + (1 - spread)) / (template.count + 1))
        else:
            scores.append(0.0)
    order = sorted(range(len(known)), key=lambda n: (-scores[n], -n))
    return [known[n][0] for n in order[:most] if scores[n] > 0]

"""What a line means: the table of signatures, and how much each weighs.

A match is not a cause. Each signature has a weight, and the heaviest that is found decides, the earliest of equals:

| weight | what it is |
|---|---|
| `CERTAIN` | a machine, a driver or a kernel says itself that it has failed |
| `SPECIFIC` | a program says which thing went wrong |
| `GENERIC` | an exception that is the program's own unless something heavier is found |
| `HINT` | a trace that something leaves behind: an exit code, a retry |
| `CASCADE` | what others of the job say once one has failed: it tells that something failed, never what |

Lines that match `decoys.DECOYS` are not looked at: warnings that every good job has, environment; nor are sentences
of advice that a library prints.
The tables are in the `signatures_*` files, one for each place where causes lie; in each, what is more special stands
before what is less so, and the first match of a line counts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from perdure.watcher.labels import CLASSES, Action, Label, Owner
from perdure.watcher.logs.literals import needed, ways

__all__ = [
    "CASCADE",
    "CERTAIN",
    "GENERIC",
    "HINT",
    "SPECIFIC",
    "Row",
    "Signature",
    "is_decoy",
    "match_of",
    "table",
    "without_advice",
    "without_zeros",
]

_SENTENCE = re.compile(r"(?<=[\w)\]'\"`][.!?]) +(?=[A-Z])|(?<=\)) +(?=If )")
_CLAUSE = re.compile(r"[,;] +(?:(?:and|so|but) )?$| - $")

CERTAIN = 4.0
SPECIFIC = 3.0
GENERIC = 2.0
HINT = 1.5
CASCADE = 1.0

Row = tuple[Label, str, str] | tuple[Label, str, str, Owner, Action]
"A label, a phrase for people, a pattern, and owner and action where they are not the label's usual ones."


@dataclass(frozen=True, slots=True)
class Signature:
    """A pattern and what it means."""

    label: Label
    means: str
    weight: float
    owner: Owner
    action: Action
    pattern: str


class _Finder:
    """Finds which of many patterns, numbered in their order, is the first that matches a text.

    Each way to match is tried only where one of its words stands in the text; it is compiled when that first happens.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._ways: list[tuple[int, str]] = []
        self._of_word: dict[str, list[int]] = {}
        self._always: list[int] = []
        for number, pattern in enumerate(patterns):
            for way in ways(pattern):
                words = needed(way)
                for word in words:
                    self._of_word.setdefault(word, []).append(len(self._ways))
                if not words:
                    self._always.append(len(self._ways))
                self._ways.append((number, way))

    def first(self, text: str) -> int | None:
        """The number of the first pattern that matches, if one does."""
        low = text.lower()
        chosen = set(self._always)
        for word, numbers in self._of_word.items():
            if word in low:
                chosen.update(numbers)
        for at in sorted(chosen):
            number, way = self._ways[at]
            if _compiled(way).search(text) is not None:
                return number
        return None


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def table(weight: float, rows: Iterable[Row]) -> list[Signature]:
    """Signatures of one weight."""
    found = []
    for row in rows:
        usual = CLASSES[row[0]]
        owner, action = (row[3], row[4]) if len(row) == 5 else (usual.owner, usual.action)
        found.append(Signature(row[0], row[1], weight, owner, action, row[2]))
    return found


@functools.cache
def _signatures() -> tuple[Signature, ...]:
    from perdure.watcher.logs import signatures_hardware as hardware
    from perdure.watcher.logs import signatures_infra as infra
    from perdure.watcher.logs import signatures_program as program
    from perdure.watcher.logs import signatures_training as training

    return tuple(
        table(GENERIC - 0.2, hardware.MENDED_ROWS)
        + table(CERTAIN, hardware.CERTAIN_ROWS)
        + table(SPECIFIC + 0.5, infra.CERTAIN_ROWS)
        + table(SPECIFIC, program.FIRST_ROWS)
        + table(SPECIFIC, infra.ROWS)
        + table(SPECIFIC, hardware.ROWS)
        + table(SPECIFIC, training.ROWS)
        + table(SPECIFIC, program.ROWS)
        + table(GENERIC - 0.1, infra.ENDED_ROWS)
        + table(GENERIC - 0.2, hardware.WEAK_ROWS)
        + table(HINT, infra.HINT_ROWS)
        + table(HINT, program.HINT_ROWS)
        + table(CASCADE, program.CASCADE_ROWS)
        + table(GENERIC, program.GENERIC_ROWS)
    )


@functools.cache
def _finder() -> _Finder:
    return _Finder(each.pattern for each in _signatures())


@functools.cache
def _decoys() -> _Finder:
    from perdure.watcher.logs.decoys import DECOYS

    return _Finder(DECOYS)


def is_decoy(text: str) -> bool:
    """Whether a line looks like trouble and is none.

    >>> is_decoy("[c10d] The IPv6 network addresses of (node1, 29500) cannot be retrieved (errno: 97)")
    True
    """
    return _decoys().first(text) is not None


@functools.cache
def _advice() -> re.Pattern[str]:
    from perdure.watcher.logs.decoys import ADVICE

    return re.compile("|".join(f"(?:{each})" for each in ADVICE), re.IGNORECASE)


def without_advice(text: str) -> str:
    """``text`` without the sentences that only say what could be done, or what could be the reason.

    >>> without_advice("ValueError: too long. Please try a shorter one. Stopped.")
    'ValueError: too long. Stopped.'
    >>> without_advice("the file is broken, please check your disk")
    'the file is broken'
    """
    return " ".join(filter(None, map(_said, _SENTENCE.split(text))))


def _said(sentence: str) -> str:
    """A sentence up to the clause in which it begins to advise."""
    match = _advice().search(sentence)
    if match is None:
        return sentence
    clause = _CLAUSE.search(sentence, 0, match.start())
    return sentence[: clause.start()] if clause else ""


@functools.cache
def _zeros() -> re.Pattern[str]:
    from perdure.watcher.logs.decoys import ZEROS

    return re.compile("|".join(f"(?:{each})" for each in ZEROS), re.IGNORECASE)


def without_zeros(text: str) -> str:
    """``text`` without the counters that say that nothing happened.

    >>> without_zeros("grad norm: nan | number of nan iterations: 0")
    'grad norm: nan | '
    """
    return _zeros().sub("", text)


def match_of(text: str) -> Signature | None:
    """What a line's message says, if it says anything.

    >>> match_of("NVRM: GPU at PCI:0000:3b:00: GPU-1 has fallen off the bus.").label
    <Label.GPU_OFF_BUS: 'hw.gpu_off_bus'>
    >>> match_of("iteration 100 | loss: 2.1") is None
    True
    """
    if is_decoy(text):
        return None
    number = _finder().first(without_advice(without_zeros(text)))
    return None if number is None else _signatures()[number]

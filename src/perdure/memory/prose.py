"""What free prose says of what a question asks: features of statements, and how much each counts.

A statement of a conversation seldom repeats the words of a question: "First week done at Halden Freight" answers "Who
does Rohan work for?". What tells is who says it, about whom, whether it gives a value of the kind that is asked for,
whether it is news, whether its words or those beside it are of the question's family, and whether it only muses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from perdure.memory.classes import is_of
from perdure.memory.clauses import (
    CALENDAR,
    PLACE,
    SELF,
    asked_share,
    clashes,
    gives_kind,
    has_word,
    is_of_named_other,
    is_of_others,
    mused_share,
    relatedness,
)
from perdure.memory.corrections import kinds_in
from perdure.memory.cues import (
    is_again,
    is_correction,
    is_elsewhere,
    is_event,
    is_past,
    is_retraction,
    is_update,
)
from perdure.memory.families import families_of
from perdure.memory.questions import Question, bare
from perdure.memory.siblings import has_sibling
from perdure.memory.slots import folded, stem, words_in

__all__ = ["NAMES", "Line", "features"]


@dataclass(frozen=True, slots=True)
class Line:
    """A statement and the turn that it stands in (a number that grows with time)."""

    text: str
    speaker: str
    turn: int
    role: str = "user"


_MINE: Final = re.compile(
    r"\bmine\b|^(?:same|me too|lol|ha|haha|same here|noted|ok|cute|wow|congrats|nice|thanks|thx|yes|no|good (?:morning"
    r"|night|luck|one)|oh (?:no|dear|wow)|aw+|poor|happy|lucky|well done|brilliant|cool|great|lovely)\b",
    re.IGNORECASE,
)
_PRONOUN: Final = re.compile(r"(?:(?:and|so|but|now) )?(?:he|she|they|it|his|her|their)\b", re.IGNORECASE)
_YOURS: Final = re.compile(r"\b(?:your|yours|you)\b", re.IGNORECASE)
_THIRD: Final = re.compile(r"(?:(?:and|so|but|now|well),? )*(?:he|she|his|her|they|their)\b", re.IGNORECASE)

_ANSWERS: Final = re.compile(
    r"^(?:it'?s|it is|that'?s|make (?:it|that)|says?|should be|it was|now it'?s|so it'?s|so)\b|\bit is\b|\bit'?ll be\b"
    r"|^\S+(?: \S+)?$|\bso (?:put|use|write|say)\b",
    re.IGNORECASE,
)
_BUSY: Final = ("words", "family", "kind", "class", "retraction", "update", "correction", "event", "valued")
"""What a statement has any of that is more than small talk."""

NAMES: Final = (
    "words",
    "words_turn",
    "words_before",
    "family",
    "family_turn",
    "kind",
    "kind_turn",
    "news",
    "by_subject",
    "by_other",
    "names",
    "names_turn",
    "aide",
    "kin",
    "kin_turn",
    "mine",
    "musing",
    "musing_turn",
    "asked",
    "length",
    "turn_length",
    "past",
    "self",
    "place",
    "yes_retraction",
    "elsewhere",
    "third",
    "yours",
    "clash",
    "class",
    "class_turn",
    "about_class",
    "about",
    "about_kind",
    "about_family",
    "sibling",
    "to_subject",
    "gives",
    "lacks",
    "names_lost",
    "idle",
    "idle_turn",
    "third_named",
    "answers",
)
"""What tells whether a statement speaks of what is asked."""


def features(question: Question, lines: Sequence[Line]) -> list[dict[str, float]]:
    """Return numbers for each statement, among them those of `NAMES`. ``lines`` are in the order of time."""
    stems = [{stem(each) for each in words_in(line.text)} for line in lines]
    count = Counter(word for some in stems for word in some)
    weight = {word: log(1 + len(lines) / (1 + count[word])) + 0.1 for word in question.words}
    whole = sum(weight.values()) or 1.0
    speakers = {line.speaker for line in lines}
    subject = {each for each in speakers if any(bare(word) in question.names for word in words_in(each))}
    if not subject and speakers & {"user"} and (question.own or question.names):
        subject = {"user"}
    by_turn: dict[int, list[int]] = {}
    for at, line in enumerate(lines):
        by_turn.setdefault(line.turn, []).append(at)
    in_order = sorted(by_turn)
    order = {turn: at for at, turn in enumerate(in_order)}
    entities = question.names - {bare(word) for each in speakers for word in words_in(each)}
    asked_for = question.words | entities | question.kin
    known = question.names | {bare(word) for each in speakers for word in words_in(each)} | CALENDAR
    called = {bare(value) for line in lines for value in kinds_in(line.text).get("name", ())}
    seen: set[str] = set()
    other_one = False
    turn = -1
    own: list[dict[str, float]] = []
    for at, line in enumerate(lines):
        got = kinds_in(line.text)
        theirs_too = is_of_others(line.text, question)
        carried = line.turn == turn and other_one and bool(_PRONOUN.match(line.text))
        other_one, turn = theirs_too or carried, line.turn
        values = {folded(value) for kind, some in got.items() for value in some}
        families = {family for word in stems[at] for family in families_of(word)}
        own.append(
            {
                "words": sum(weight[word] for word in question.words if has_word(word, stems[at])) / whole,
                "family": sum(relatedness(word, stems[at], families) for word in question.words)
                / (len(question.words) or 1),
                "kind": float(gives_kind(question, got, line.text, known)),
                "class": float(is_of(question.classes, stems[at], line.text, question.words)),
                "event": float(is_event(line.text)),
                "news": float(bool(values - seen)),
                "names": float(bool(question.names) and any(bare(w) in question.names for w in words_in(line.text))),
                "kin": float(theirs_too or carried),
                "yours": float(line.speaker in subject and bool(_YOURS.search(line.text))),
                "to_subject": float(
                    bool(subject) and line.speaker not in subject and bool(_YOURS.search(line.text)) and not theirs_too
                ),
                "third": float(
                    not (question.kin or entities) and bool(_THIRD.match(line.text)) and not SELF.search(line.text)
                ),
                "sibling": float(has_sibling(asked_for, stems[at])),
                "valued": float(bool(got)),
                "again": float(is_again(line.text)),
                "third_named": float(is_of_named_other(line.text, question, known, called)),
                "answers": float(bool(_ANSWERS.search(line.text))),
                "elsewhere": float(is_elsewhere(line.text)),
                "clash": float(clashes(line.text, question)),
                "musing": mused_share(line.text),
                "asked": asked_share(line.text),
                "update": float(is_update(line.text)),
                "correction": float(is_correction(line.text)),
                "retraction": float(is_retraction(line.text)),
                "past": float(is_past(line.text)),
                "self": float(bool(SELF.search(line.text))),
                "place": float("place" in question.kinds and bool(PLACE.search(line.text))),
                "who": float("who" in question.kinds),
                "mine": float(bool(_MINE.search(line.text))),
                "length": min(2.0, log(1 + len(stems[at])) / 2),
            }
        )
        seen |= values
    for at, line in enumerate(lines):
        mates = by_turn[line.turn]
        mine = own[at]
        before = by_turn[in_order[order[line.turn] - 1]] if order[line.turn] else []
        mine["before"] = max([own[other]["words"] for other in before], default=0.0)
        mine["by_subject"] = float(line.speaker in subject)
        mine["recent"] = order[line.turn] / (len(order) - 1 or 1)
        mine["turn_length"] = min(3.0, log(1 + sum(len(stems[other]) for other in mates)) / 2)
        for name in (
            "words",
            "family",
            "kind",
            "names",
            "kin",
            "musing",
            "update",
            "correction",
            "retraction",
            "self",
            "elsewhere",
            "third",
            "yours",
            "clash",
            "class",
            "event",
            "sibling",
            "again",
        ):
            mine[name + "_turn"] = max(own[other][name] for other in mates)
        mine["words_before"] = mine["before"]
        mine["idle"] = float(not any(mine[name] for name in _BUSY))
        mine["gives"] = max(mine["kind"], mine["class"])
        mine["lacks"] = max(own[other]["kind"] + own[other]["class"] for other in mates) - mine["kind"] - mine["class"]
        mine["idle_turn"] = float(not any(own[other][name] for other in mates for name in _BUSY))
        told = {bare(word) for other in mates for word in words_in(lines[other].text)}
        mine["names_lost"] = sum(name not in told for name in entities) / (len(entities) or 1)
        mine["aide"] = float(line.role == "assistant" or line.speaker == "assistant")
        mine["by_other"] = float(bool(subject) and line.speaker not in subject and not mine["names_turn"])
        mine["yes_retraction"] = float(question.yes) * mine["retraction"]
        mine["about"] = float(
            (mine["by_subject"] or mine["names_turn"] or not subject)
            and not mine["kin"]
            and mine["musing"] < 1
            and mine["asked"] < 1
            and not mine["aide"]
            and not mine["clash"]
            and not mine["sibling"]
            and not mine["third_named"]
        )
        for name in ("update", "event", "retraction", "again"):
            mine[name + "_about"] = mine[name] * mine["about"]
        mine["about_kind"] = mine["about"] * mine["kind"]
        mine["about_class"] = mine["about"] * mine["class"]
        mine["about_family"] = mine["about"] * max(mine["family"], mine["family_turn"] * 0.7)
    return own

"""What free prose says of what a question asks: features of statements, and how much each counts.

A statement of a conversation seldom repeats the words of a question: "First week done at Halden Freight" answers "Who
does Rohan work for?". What tells is who says it, about whom, whether it gives a value of the kind that is asked for,
whether it is news, whether its words or those beside it are of the question's family, and whether it only muses.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from perdure.memory.classes import is_of, words_of
from perdure.memory.corrections import kinds_in
from perdure.memory.cues import (
    is_again,
    is_asked,
    is_correction,
    is_elsewhere,
    is_event,
    is_musing,
    is_past,
    is_retraction,
    is_update,
)
from perdure.memory.families import families_of, is_kin
from perdure.memory.questions import SMALL, Question, bare
from perdure.memory.siblings import has_sibling
from perdure.memory.slots import folded, stem, words_in
from perdure.memory.wordlists import word_set

__all__ = ["LATER", "NAMES", "Line", "features", "later"]


@dataclass(frozen=True, slots=True)
class Line:
    """A statement and the turn that it stands in (a number that grows with time)."""

    text: str
    speaker: str
    turn: int
    role: str = "user"


_PLACE: Final = re.compile(
    r"\b(?:in|at|to|from|near|under|behind|on|inside|over|into) (?:the |a |my |our )?[\w\u00c0-\u024f]", re.IGNORECASE
)
_MINE: Final = re.compile(
    r"\bmine\b|^(?:same|me too|lol|ha|haha|same here|noted|ok|cute|wow|congrats|nice|thanks|thx|yes|no|good (?:morning"
    r"|night|luck|one)|oh (?:no|dear|wow)|aw+|poor|happy|lucky|well done|brilliant|cool|great|lovely)\b",
    re.IGNORECASE,
)
_SELF: Final = re.compile(r"\b(?:i|i'm|i've|i'll|i'd|im|my|me|we|we're|we've|our|us)\b", re.IGNORECASE)
_OTHERS: Final = re.compile(
    r"(?:(?:so|and|but|well|ok|anyway|took|for|also|btw|oh|now|yes|no|then|at|even|with)[,:]? )*(?:my|his|her"
    r"|their|our|your|the)(?: [\w'\u2019]+){1,2}|(?:wife|husband|mum|mom|dad|sister|brother)\b",
    re.IGNORECASE,
)
_PRONOUN: Final = re.compile(r"(?:(?:and|so|but|now) )?(?:he|she|they|it|his|her|their)\b", re.IGNORECASE)
_CLAUSES: Final = re.compile(r"[,;:.!\u2014] |\b(?:because|cause|since) ")
_PARTS: Final = re.compile(r"[,;:.!\u2014(]\s*|\b(?:and|but|while) ")
_YOURS: Final = re.compile(r"\b(?:your|yours|you)\b", re.IGNORECASE)
_THIRD: Final = re.compile(r"(?:(?:and|so|but|now|well),? )*(?:he|she|his|her|they|their)\b", re.IGNORECASE)
_THEIRS: Final = re.compile(r"\b(?:her|his|their|your) (\w+)", re.IGNORECASE)
_PLAINLY: Final = re.compile(
    r"\b(?:might|maybe|perhaps|would love|dream|thinking (?:of|about)|consider(?:ing)?|one day|some ?day"
    r"|at some point|tempted|wish)\b",
    re.IGNORECASE,
)
_CALENDAR: Final = word_set(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july"
    " august september october november december i ok christmas easter"
)

_DENIED: Final = re.compile(
    r"\b(?:not|isn't|wasn't|aren't|never|instead of|rather than|no longer) (?:(?:the|a|an|at|in|on|for|to|with|my|by)"
    r" )?(\S+(?: [A-Z\d]\S*)?)",
    re.IGNORECASE,
)
_FIGURE: Final = re.compile(r"[\w./:@\u20ac$\u00a3%-]*\d[\w./:%-]*")
_BEGINS: Final = re.compile(r"([A-Z][\w'\u2019-]{2,}) (?:is|was|has|does|did|will|got|took|[a-z]+s)\b")
_DOES: Final = re.compile(
    r"(?:(?:and|so|but|then|now|also|heads up|btw|anyway)[,:]? )*([A-Z][\w\u2019-]{2,})(?:'s)? (?:is|was|has|does|did|gets|takes|got"
    r"|took|said|had|went|just|moved|wants|needs|will|[a-z]+s|[a-z]+ed)\b"
)
_ANSWERS: Final = re.compile(
    r"^(?:it'?s|it is|that'?s|make (?:it|that)|says?|should be|it was|now it'?s|so it'?s|so)\b|\bit is\b|\bit'?ll be\b"
    r"|^\S+(?: \S+)?$|\bso (?:put|use|write|say)\b",
    re.IGNORECASE,
)
_BUSY: Final = ("words", "family", "kind", "class", "retraction", "update", "correction", "event", "valued")
"""What a statement has any of that is more than small talk."""
NOTHING: Final[frozenset[str]] = frozenset()

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

LATER: Final = (
    "fills",
    "fills_turn",
    "recent",
    "recent_about",
    "later",
    "later_about",
    "later_valid",
    "musing",
    "musing_turn",
    "kin",
    "kin_turn",
    "elsewhere_turn",
    "mine",
    "third",
    "self",
    "clash_turn",
    "event_about",
    "event_turn",
    "later_event",
    "class",
    "same_class_later",
    "update_about",
    "update_turn",
    "correction",
    "correction_turn",
    "retraction_about",
    "yes_retraction",
    "later_cue",
    "alike",
    "alike_later",
    "same_kind",
    "same_kind_later",
    "same_speaker_later",
    "by_subject",
    "aide",
    "asked",
    "later_other_words",
    "sibling",
    "later_sibling",
    "to_subject",
    "gives",
    "lacks",
    "names_lost",
    "words_less",
    "words_later",
    "denies",
    "denies_turn",
    "shape_later",
    "again_about",
    "again_known",
    "idle",
    "idle_turn",
    "third_named",
    "answers_later",
    "other_later",
    "other_lost",
    "family_alike",
)
"""What tells, beside that, whether it holds now."""


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
    known = question.names | {bare(word) for each in speakers for word in words_in(each)} | _CALENDAR
    called = {bare(value) for line in lines for value in kinds_in(line.text).get("name", ())}
    seen: set[str] = set()
    other_one = False
    turn = -1
    own: list[dict[str, float]] = []
    for at, line in enumerate(lines):
        got = kinds_in(line.text)
        theirs_too = _of_others(line.text, question)
        carried = line.turn == turn and other_one and bool(_PRONOUN.match(line.text))
        other_one, turn = theirs_too or carried, line.turn
        values = {folded(value) for kind, some in got.items() for value in some}
        families = {family for word in stems[at] for family in families_of(word)}
        own.append(
            {
                "words": sum(weight[word] for word in question.words if _has(word, stems[at])) / whole,
                "family": sum(_related(word, stems[at], families) for word in question.words)
                / (len(question.words) or 1),
                "kind": float(_gives(question, got, line.text, known)),
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
                    not (question.kin or entities) and bool(_THIRD.match(line.text)) and not _SELF.search(line.text)
                ),
                "sibling": float(has_sibling(asked_for, stems[at])),
                "valued": float(bool(got)),
                "again": float(is_again(line.text)),
                "third_named": float(_is_named_other(line.text, question, known, called)),
                "answers": float(bool(_ANSWERS.search(line.text))),
                "elsewhere": float(is_elsewhere(line.text)),
                "clash": float(_clashes(line.text, question)),
                "musing": _mused(line.text),
                "asked": _asked(line.text),
                "update": float(is_update(line.text)),
                "correction": float(is_correction(line.text)),
                "retraction": float(is_retraction(line.text)),
                "past": float(is_past(line.text)),
                "self": float(bool(_SELF.search(line.text))),
                "place": float("place" in question.kinds and bool(_PLACE.search(line.text))),
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
        mine["idle_turn"] = float(
            not any(
                own[other][name]
                for other in mates
                for name in _BUSY
            )
        )
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


def later(question: Question, lines: Sequence[Line], own: list[dict[str, float]], fills: Sequence[float]) -> None:
    """Add to the features of each statement what tells whether it holds now, given how well each fills the slot."""
    stems = [{stem(each) for each in words_in(line.text)} - SMALL - question.words for line in lines]
    turns: dict[int, set[str]] = {}
    for at, line in enumerate(lines):
        turns.setdefault(line.turn, set()).update(stems[at])
    count = Counter(word for some in turns.values() for word in some)
    shapes = [_shapes(line.text) for line in lines]
    speakers = {bare(word) for line in lines for word in words_in(line.speaker)}
    values = [_values(question, line.text, speakers) for line in lines]
    topics: dict[int, set[str]] = {}
    for line in lines:
        topics.setdefault(line.turn, set()).update(
            family for word in words_in(line.text) if stem(word) not in question.words for family in families_of(word)
        )
    told_by: dict[int, frozenset[str]] = {}
    so_far: frozenset[str] = NOTHING
    for at, line in enumerate(lines):
        told_by[at] = so_far
        so_far |= {bare(value) for some in kinds_in(line.text).values() for value in some}
        so_far |= words_of(question.classes, stems[at])
    top = max(fills)
    ordered = sorted(range(len(lines)), key=lambda at: -fills[at])
    leader = ordered[0]
    runner = next((at for at in ordered if lines[at].turn != lines[leader].turn), leader)
    of_turn: dict[int, float] = {}
    for at, line in enumerate(lines):
        of_turn[line.turn] = max(fills[at], of_turn.get(line.turn, fills[at]))
    for at, line in enumerate(lines):
        mine = own[at]
        mine["fills"] = fills[at] - top
        mine["fills_turn"] = of_turn[line.turn] - top
        best = leader if lines[leader].turn != line.turn else runner
        after = float(line.turn > lines[best].turn)
        mine["later"] = after
        mine["recent_about"] = mine["recent"] * mine["about"]
        mine["later_about"] = after * mine["about"]
        mine["later_valid"] = after * float(
            bool(mine["about"])
            and not mine["kin_turn"]
            and mine["musing_turn"] < 1
            and not mine["clash_turn"]
            and not mine["elsewhere_turn"]
            and not mine["sibling_turn"]
        )
        cue = max(mine["update_turn"], mine["correction_turn"], mine["retraction_turn"])
        mine["later_cue"] = mine["later_valid"] * cue
        mine["later_event"] = mine["later_valid"] * mine["event_turn"]
        mine["same_class_later"] = mine["later_valid"] * mine["class"] * own[best]["class"]
        alone = line.turn == lines[best].turn  # there is no other to be alike
        shared = set() if alone else turns[line.turn] & turns[lines[best].turn]
        mine["alike"] = min(1.0, sum(1 / (count[word] - 1) for word in shared) / 2)
        mine["alike_later"] = mine["alike"] * after
        kinds = set(kinds_in(line.text)) & set(kinds_in(lines[best].text)) - {"number"}
        mine["same_kind"] = float(bool(kinds))
        mine["same_kind_later"] = mine["same_kind"] * mine["later_valid"]
        mine["same_speaker_later"] = after * float(line.speaker == lines[best].speaker)
        mine["words_less"] = max(row["words"] for row in own) - mine["words_turn"]
        mine["words_later"] = after * mine["words_turn"]
        mine["later_sibling"] = after * mine["sibling_turn"]
        mine["denies"] = float(bool(_denied(line.text) & told_by[at] - question.words))
        mine["shape_any"] = float(
            any(form in shapes[best] and not some & shapes[best][form] for form, some in shapes[at].items())
        )
        mine["shape_later"] = mine["later_valid"] * mine["shape_any"]
        mine["other_any"] = float(bool(values[at] - values[best]))
        mine["answers_later"] = mine["answers"] * mine["later_valid"]
        mine["other_later"] = mine["later_valid"] * mine["other_any"]
        mine["family_alike"] = after * min(
            1.0, len(topics[line.turn] & topics[lines[best].turn]) / (len(topics[line.turn]) or 1)
        )
        mine["again_known"] = mine["again_turn"] * mine["alike"] * after
        mine["later_other_words"] = after * max(0.0, own[best]["words"] - mine["words_turn"])
    mates: dict[int, list[dict[str, float]]] = {}
    for row, line in zip(own, lines, strict=True):
        mates.setdefault(line.turn, []).append(row)
    for row, line in zip(own, lines, strict=True):
        row["denies_turn"] = max(other["denies"] for other in mates[line.turn])
        row["other_lost"] = max(other["other_later"] for other in mates[line.turn]) - row["other_later"]


def _plain(text: str) -> str:
    """A text without the clause at its end that asks something."""
    return _CLAUSES.split(text)[0] if is_asked(text) else text


def _values(question: Question, text: str, known: set[str]) -> set[str]:
    """The values in a text of the kinds and classes that are asked for."""
    got = kinds_in(text)
    found = {
        bare(value) for kind in question.kinds for value in got.get("name" if kind == "place" else kind, set())
    } | words_of(question.classes, {stem(word) for word in words_in(text)})
    begins = _BEGINS.match(text)
    if begins and "name" in question.kinds and _is_name(begins[1]):
        found.add(bare(begins[1]))
    return found - known - question.names - question.words


def _is_name(word: str) -> bool:
    """Whether a word at the beginning of a statement, with a capital, is likely a name."""
    return stem(word) not in SMALL and not families_of(word) and not is_kin(word) and folded(word) not in _CALENDAR


def _is_named_other(text: str, question: Question, known: frozenset[str], called: set[str]) -> bool:
    """Whether a clause begins with the name of somebody who does what it tells, and is not asked about."""
    for clause in _PARTS.split(text[:600]):
        found = _DOES.match(clause)
        if found and bare(found[1]) in called - known - question.names and not _has(stem(found[1]), set(question.words)):
            return not _SELF.search(clause)
    return False


def _denied(text: str) -> set[str]:
    """The words that a statement says are not so: "8, not 6"."""
    return {folded(each) for found in _DENIED.findall(text[:1000]) for each in words_in(found)} - SMALL


def _shapes(text: str) -> dict[str, set[str]]:
    """The figures of a text by their form: "heron-9083" and "moose-4471" are alike."""
    found: dict[str, set[str]] = {}
    for each in _FIGURE.findall(text[:1000]):
        form = re.sub(r"[a-z]+", "a", re.sub(r"\d+", "9", each.lower()))
        found.setdefault(form, set()).add(each.lower())
    return found


def _has(word: str, stems: set[str]) -> bool:
    return word in stems or (len(word) > 4 and any(each[:5] == word[:5] or each.endswith(word) for each in stems))


def _related(word: str, stems: set[str], families: set[str]) -> float:
    return 1.0 if _has(word, stems) else 0.7 if families_of(word) & families else 0.0


def _gives(question: Question, got: dict[str, set[str]], text: str, known: frozenset[str]) -> bool:
    """Whether a statement has a value of the kind that is asked for, and not only one that the question names."""
    for kind in question.kinds:
        some = got.get("name" if kind == "place" else kind, set())
        if kind == "place" and not _PLACE.search(text):
            continue
        if any(bare(value) not in known for value in some):
            return True
    begins = _BEGINS.match(text)
    return bool(begins and "name" in question.kinds and _is_name(begins[1]) and bare(begins[1]) not in known)


def _of_others(text: str, question: Question) -> bool:
    """Whether a clause is about somebody of the speaker's whom the question does not ask about."""
    inner = _THEIRS.search(text[:600])
    entity = bool(question.names) and not question.own
    if inner and not entity and is_kin(inner[1]) and stem(inner[1]) not in question.kin and not _SELF.search(text):
        return True
    for clause in _PARTS.split(text[:600]):
        found = _OTHERS.match(clause)
        if found and any(is_kin(word) and stem(word) not in question.kin for word in words_in(found[0])):
            return not _SELF.search(_plain(text.replace(found[0], "")))
    return False


def _clashes(text: str, question: Question) -> bool:
    """Whether a statement speaks of another one of what the question asks about: "the red door" for "the front"
    " door"."""
    words = [stem(each) for each in words_in(text)]
    return any(
        word in question.heads
        and before not in question.words
        and before not in SMALL
        and len(before) > 2
        and not families_of(before) & question.families
        for before, word in itertools.pairwise(words)
    )


def _asked(text: str) -> float:
    """1 for a question, less where it only ends in one."""
    if not is_asked(text):
        return 0.0
    return 0.3 if len(_CLAUSES.split(text)[0].split()) >= 4 and len(_CLAUSES.split(text)) > 1 else 1.0


def _mused(text: str) -> float:
    """1 for a wish, a plan or a doubt, less where the words that tell so come after the first clause."""
    if not is_musing(text):
        return 0.0
    parts = _CLAUSES.split(text)
    first = parts[0]
    telling = [each for each in parts if kinds_in(each)]
    if len(parts) > 1 and telling and not any(is_musing(each) for each in telling):
        return 0.3
    return 1.0 if _PLAINLY.search(text) or is_musing(first) or len(first.split()) < 4 else 0.4

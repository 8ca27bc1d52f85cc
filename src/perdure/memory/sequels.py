"""What tells whether a statement holds now: how it goes on with the statement that fills the slot best.

Beside what `prose` says of each statement, each is seen against the best other one: whether it comes later, speaks of
the same with other words, has another value of the same form, denies the old one, or is as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from perdure.memory.classes import words_of
from perdure.memory.clauses import denied_in, forms_in, values_in
from perdure.memory.corrections import kinds_in
from perdure.memory.families import families_of
from perdure.memory.prose import Line
from perdure.memory.questions import SMALL, Question, bare
from perdure.memory.slots import stem, words_in

__all__ = ["LATER", "later"]

NOTHING: Final[frozenset[str]] = frozenset()
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


def later(question: Question, lines: Sequence[Line], own: list[dict[str, float]], fills: Sequence[float]) -> None:
    """Add to the features of each statement what tells whether it holds now, given how well each fills the slot."""
    stems = [{stem(each) for each in words_in(line.text)} - SMALL - question.words for line in lines]
    turns: dict[int, set[str]] = {}
    for at, line in enumerate(lines):
        turns.setdefault(line.turn, set()).update(stems[at])
    count = Counter(word for some in turns.values() for word in some)
    shapes = [forms_in(line.text) for line in lines]
    speakers = {bare(word) for line in lines for word in words_in(line.speaker)}
    values = [values_in(question, line.text, speakers) for line in lines]
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
        mine["denies"] = float(bool(denied_in(line.text) & told_by[at] - question.words))
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

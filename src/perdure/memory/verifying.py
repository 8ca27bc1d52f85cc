"""Judge a plan before anything is done: whatever it says, no fact may be lost, rewritten or outvoted by a lesser word.

Pure. `verify` lists what is wrong with a plan, `tempered` takes out of it what is merely not allowed (a replacement by
a lesser authority becomes a conflict that is shown), and `after` says where every fact would be. These hold for every
plan that `verify` passes:

- each fact of the batch lies in exactly one topic, each other fact still does, and none is named that is not known;
- a fact is hidden by another only if that one is known, is not forgotten, has no less authority, is no older, and
  shares a slot or says in its own words that something changed;
- hiding has no cycles, so that every hidden fact leads to one that is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from perdure.memory.plan import (
    Alias,
    Assign,
    Conflict,
    Duplicate,
    Merge,
    Op,
    Plan,
    Retitle,
    Split,
    Summarise,
    Supersede,
    sane_title,
)
from perdure.memory.records import Fact, State

__all__ = ["Fault", "Known", "after", "says_less", "tempered", "verify"]

_WORD: Final = re.compile(r"\w+")
_NO: Final = "no not never none neither nor without cannot cant dont doesnt didnt isnt wasnt arent werent wont"
_NEGATION: Final = frozenset(_NO.split())
_LITTLE: Final = "a an the and is are was were has have had do does did to of in at on that"
_SMALL: Final = frozenset(_LITTLE.split())
_CUE: Final = re.compile(
    r"\b(?:now|no longer|not any ?more|any ?more|instead|actually|correction|changed?|moved?|switch(?:ed)?|replac\w+"
    r"|updat\w+|used to|from now on|since then|became|renamed?|stopp?ed|quit|left|cancel\w+|postpon\w+|reschedul\w+)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong. ``fatal`` ones cannot be left out of the plan; the others are one operation that is refused."""

    text: str
    fatal: bool = True
    op: Op | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What a plan is judged against: the facts and the topics that it may name.

    ``batch`` are the staged facts that it must place. ``slots`` are the slots that rules have found for a fact.
    ``hides`` are the pairs (hiding, hidden) that hold already; ``refused`` are pairs that a person has taken back.
    ``whole`` are the topics all of whose facts are in ``facts``, which alone may be split.
    """

    facts: Mapping[int, Fact]
    topics: frozenset[int]
    batch: frozenset[int]
    slots: Mapping[int, frozenset[str]] = field(default_factory=dict)
    hides: frozenset[tuple[int, int]] = frozenset()
    refused: frozenset[tuple[int, int]] = frozenset()
    whole: frozenset[int] = frozenset()


def verify(plan: Plan, known: Known) -> list[Fault]:
    """Return what is wrong with a plan; nothing if it can be carried out."""
    faults = [*_placing(plan, known), *_reorganising(plan, known), *_hiding(plan, known)]
    return faults


def tempered(plan: Plan, known: Known) -> tuple[Plan, list[str]]:
    """Return the plan without what is not allowed, and what was left out or softened, in words.

    A replacement by a word of less authority becomes a conflict. Faults that are fatal stay.
    """
    ops: list[Op] = []
    notes: list[str] = []
    for op in plan.ops:
        if isinstance(op, Supersede) and _lesser(op.new, op.old, known) and op.new != op.old:
            notes.append(f"f{op.new} has less authority than f{op.old}: a conflict, no replacement")
            ops.append(Conflict(op.new, op.old, op.reason or "told by a lesser authority"))
        else:
            ops.append(op)
    softened = Plan(tuple(ops))
    refused = [fault for fault in verify(softened, known) if not fault.fatal]
    notes += [fault.text for fault in refused]
    out = {id(fault.op) for fault in refused}
    return Plan(tuple(op for op in softened.ops if id(op) not in out)), notes


def after(plan: Plan, known: Known) -> dict[int, int | str | None]:
    """Return where each known fact lies then: a topic, the title of a new one, or None for staged."""
    place: dict[int, int | str | None] = {number: fact.topic for number, fact in known.facts.items()}
    into = {topic: op.into for op in plan.ops if isinstance(op, Merge) for topic in op.topics}
    for op in plan.ops:
        if isinstance(op, Assign):
            place.update(dict.fromkeys(op.facts, op.topic if op.topic is not None else sane_title(op.title)))
        elif isinstance(op, Split):
            for group in op.groups:
                place.update(dict.fromkeys(group.facts, sane_title(group.title)))
    return {number: into.get(where, where) if isinstance(where, int) else where for number, where in place.items()}


def says_less(text: str, other: str) -> bool:
    """Whether ``other`` says all that ``text`` says, as far as words can tell.

    >>> says_less("Anna lives in Lisbon", "anna LIVES in Lisbon."), says_less("Anna smokes", "Anna never smokes")
    (True, False)
    >>> says_less("Anna hit Bob", "Bob hit Anna")
    False
    """
    mine, theirs = _words(text), _words(other)
    wanted = iter([each for each in theirs if each not in _SMALL])
    telling = [each for each in mine if each not in _SMALL]
    same = _NEGATION & set(mine) == _NEGATION & set(theirs)
    return bool(telling) and same and all(each in wanted for each in telling)


def _words(text: str) -> list[str]:
    return [each.casefold() for each in _WORD.findall(text.replace("'", "").replace("\u2019", ""))]


def _placing(plan: Plan, known: Known) -> Iterable[Fault]:
    seen: set[int] = set()
    merged = {topic for op in plan.ops if isinstance(op, Merge) for topic in op.topics}
    for op in plan.ops:
        if not isinstance(op, Assign):
            continue
        if (op.topic is None) == (not op.title):
            yield Fault("an assign needs either a topic or a title")
        elif op.topic is None and not sane_title(op.title):
            yield Fault("a title needs words")
        elif op.topic is not None and op.topic not in known.topics:
            yield Fault(f"t{op.topic} is no topic that was shown")
        elif op.topic in merged:
            yield Fault(f"t{op.topic} is merged into another by the same plan; assign to that one")
        for fact in op.facts:
            if fact not in known.batch:
                yield Fault(f"f{fact} is not of this batch")
            elif fact in seen:
                yield Fault(f"f{fact} is assigned twice")
            seen.add(fact)
    missing = sorted(known.batch - seen)
    if missing:
        some = ", ".join(f"f{each}" for each in missing[:20])
        yield Fault(f"{len(missing)} facts are not assigned: {some}{' ...' if len(missing) > 20 else ''}")


def _reorganising(plan: Plan, known: Known) -> Iterable[Fault]:
    cut: set[int] = set()
    moved: set[int] = set()
    targets = {op.into for op in plan.ops if isinstance(op, Merge)}
    for op in plan.ops:
        if isinstance(op, Split):
            if op.topic not in known.whole or op.topic not in known.topics:
                yield Fault(f"t{op.topic} was not shown whole; it cannot be split")
            if op.topic in cut or op.topic in targets:
                yield Fault(f"t{op.topic} is cut or merged twice")
            cut.add(op.topic)
            for group in op.groups:
                if not sane_title(group.title):
                    yield Fault("a title needs words")
                for fact in group.facts:
                    if fact not in known.facts or known.facts[fact].topic != op.topic:
                        yield Fault(f"f{fact} is not in t{op.topic}")
                    elif fact in moved:
                        yield Fault(f"f{fact} is moved twice")
                    moved.add(fact)
        elif isinstance(op, Merge):
            for topic in op.topics:
                if topic not in known.topics or topic == op.into or topic in targets or topic in cut:
                    yield Fault(f"t{topic} cannot be merged into t{op.into}")
                cut.add(topic)
            if op.into not in known.topics or op.into in cut:
                yield Fault(f"t{op.into} cannot take other topics in")
        elif isinstance(op, Retitle | Summarise | Alias):
            if op.topic not in known.topics:
                yield Fault(f"t{op.topic} is no topic that was shown")
            if isinstance(op, Retitle) and not sane_title(op.title):
                yield Fault("a title needs words")
    for op in plan.ops:
        if isinstance(op, Split) and any(
            isinstance(other, Merge) and op.topic in (*other.topics, other.into) for other in plan.ops
        ):
            yield Fault(f"t{op.topic} is cut or merged twice")


def _hiding(plan: Plan, known: Known) -> Iterable[Fault]:
    above: dict[int, set[int]] = {}
    for hiding, hidden in known.hides:
        above.setdefault(hidden, set()).add(hiding)
    taken: set[tuple[int, int]] = set()
    for op in plan.ops:
        if isinstance(op, Supersede):
            pair, why = (op.new, op.old), _no_replacement(op, known)
        elif isinstance(op, Duplicate):
            pair, why = (op.of, op.fact), _no_duplicate(op, known)
        elif isinstance(op, Conflict):
            pair, why = (op.fact, op.other), _no_pair(op.fact, op.other, known)
            if why:
                yield Fault(why, fatal=_unknown(pair, known), op=op)
            continue
        else:
            continue
        if why is None and pair in known.refused:
            why = f"a person has taken back that f{pair[0]} stands for f{pair[1]}"
        if why is None and (pair in taken or _reaches(pair[0], pair[1], above)):
            why = f"f{pair[0]} and f{pair[1]} would hide one another"
        if why is not None:
            yield Fault(why, fatal=_unknown(pair, known), op=op)
            continue
        taken.add(pair)
        above.setdefault(pair[1], set()).add(pair[0])


def _unknown(pair: tuple[int, int], known: Known) -> bool:
    return any(each not in known.facts for each in pair)


def _reaches(start: int, goal: int, above: Mapping[int, set[int]]) -> bool:
    """Whether ``goal`` hides, by whatever way, ``start``."""
    todo, seen = [start], {start}
    while todo:
        for each in above.get(todo.pop(), ()):
            if each == goal:
                return True
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return start == goal


def _lesser(new: int, old: int, known: Known) -> bool:
    if new not in known.facts or old not in known.facts:
        return False
    return known.facts[new].role.authority < known.facts[old].role.authority


def _no_pair(one: int, other: int, known: Known) -> str | None:
    for each in (one, other):
        if each not in known.facts:
            return f"f{each} is no fact that was shown"
        if known.facts[each].state is State.FORGOTTEN:
            return f"f{each} is forgotten"
    return f"f{one} is named twice" if one == other else None


def _no_replacement(op: Supersede, known: Known) -> str | None:
    why = _no_pair(op.new, op.old, known)
    if why is not None:
        return why
    new, old = known.facts[op.new], known.facts[op.old]
    if new.role.authority < old.role.authority:
        return f"f{op.new} has less authority than f{op.old}; say conflict"
    if (new.observed_s, new.id) < (old.observed_s, old.id) and not (new.since and old.since and new.since > old.since):
        return f"f{op.new} is older than f{op.old}"
    if known.slots.get(op.new, frozenset()) & known.slots.get(op.old, frozenset()):
        return None
    quoted = op.reason.strip()
    if quoted and quoted.casefold() in new.text.casefold() and _CUE.search(quoted) and _akin(new, old):
        return None
    return f"nothing says that f{op.new} replaces f{op.old}: as reason, quote the words of f{op.new} that say so"


def _akin(new: Fact, old: Fact) -> bool:
    """Whether two facts speak of anything that is the same: a word, or who speaks."""
    common = (set(_words(new.text)) & set(_words(old.text))) - _SMALL - _NEGATION
    return bool(common) or (bool(new.speaker) and new.speaker == old.speaker)


def _no_duplicate(op: Duplicate, known: Known) -> str | None:
    why = _no_pair(op.fact, op.of, known)
    if why is not None:
        return why
    fact, of = known.facts[op.fact], known.facts[op.of]
    if fact.role.authority > of.role.authority:
        return f"f{op.fact} has more authority than f{op.of}"
    if fact.speaker != of.speaker or (fact.since or fact.observed[:10]) != (of.since or of.observed[:10]):
        return f"f{op.fact} and f{op.of} are of another speaker or time"
    if not says_less(fact.text, of.text):
        return f"f{op.fact} says what f{op.of} does not"
    return None

"""Keep topics of a size that can be read: cut what has grown, join what stayed small and speaks of the same.

Localized: only topics that were touched are cut, only small ones are joined, and nothing is ever rearranged as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from perdure.memory.plan import Alias, Group, Merge, Plan, Split, folded, sane_title
from perdure.memory.records import Fact, Topic
from perdure.memory.rule_planner import LARGE_BYTES, SMALL_BYTES, Sorting
from perdure.memory.subjects import bytes_of, surface, terms_of

__all__ = ["Taken", "cut", "join"]

_CAP: Final = LARGE_BYTES * 4 // 5
_TOGETHER: Final = 4
_SHARED: Final = 2
_NEAR: Final = 12

Taken = Callable[[str], tuple[int, int] | None]
"""A title to the topic of that name and its bytes, where there is one."""


def cut(topic: Topic, facts: Sequence[Fact], *, taken: Taken) -> Sorting | None:
    """Return a plan that leaves no more than a readable topic, or None where there is nothing to cut."""
    weight = {fact.id: bytes_of(fact.text) for fact in facts}
    total = sum(weight.values())
    if total <= LARGE_BYTES or len(facts) < 2:
        return None
    root = topic.title.split(": ")[0]
    mine = set(terms_of(topic.title))
    by_term: dict[str, list[Fact]] = {}
    for fact in facts:
        for term in terms_of(fact.text):
            if term not in mine:
                by_term.setdefault(term, []).append(fact)
    left = {fact.id: fact for fact in facts}
    groups: list[Group] = []
    keys: dict[str, int | str] = {}
    used: set[str] = {folded(topic.title)}
    for term, group in sorted(by_term.items(), key=lambda each: (-len(each[1]), each[0])):
        if total <= LARGE_BYTES:
            break
        some = [fact for fact in group if fact.id in left]
        size = sum(weight[fact.id] for fact in some)
        if SMALL_BYTES <= size <= _CAP and len(some) < len(left):
            title = _free(f"{root}: {surface(term, some[0].text)}", size, used, taken)
            groups.append(Group(title, tuple(fact.id for fact in some)))
            keys[f"{folded(root)}: {term}"] = title
            total -= size
            for fact in some:
                del left[fact.id]
    if total > LARGE_BYTES:
        for piece in _pieces(sorted(left.values(), key=lambda each: (each.observed_s, each.id)), weight)[:-1]:
            first, last = piece[0].observed[:10], piece[-1].observed[:10]
            when = first if first == last else f"{first} to {last}"
            title = _free(f"{root}: {when}", sum(weight[fact.id] for fact in piece), used, taken)
            groups.append(Group(title, tuple(fact.id for fact in piece)))
    return Sorting(Plan((Split(topic.id, tuple(groups)),)), keys) if groups else None


def join(small: Sequence[tuple[Topic, Sequence[Fact]]]) -> Plan:
    """Return a plan that merges small topics that share terms, a few at a time."""
    terms = {topic.id: _telling(topic, facts) for topic, facts in small}
    weight = {topic.id: sum(bytes_of(fact.text) for fact in facts) for topic, facts in small}
    by_term: dict[str, list[int]] = {}
    for number, words in terms.items():
        for word in words:
            by_term.setdefault(word, []).append(number)
    pairs: Counter[tuple[int, int]] = Counter()
    for numbers in by_term.values():
        if len(numbers) <= len(small) * 2 // 3:  # what nearly all speak of tells nothing apart
            pairs.update((one, other) for at, one in enumerate(numbers) for other in numbers[at + 1 : at + _NEAR])
    group_of: dict[int, list[int]] = {}
    for (one, other), shared in sorted(pairs.items(), key=lambda each: (-each[1], each[0])):
        if shared < _SHARED:
            break
        first, second = group_of.get(one, [one]), group_of.get(other, [other])
        both = [*first, *second]
        if first is second or len(both) > _TOGETHER or sum(weight[each] for each in both) > _CAP:
            continue
        group_of.update(dict.fromkeys(both, both))
    topics = {topic.id: topic for topic, _ in small}
    ops: list[Merge | Alias] = []
    for group in {id(each): each for each in group_of.values()}.values():
        into, *rest = sorted(group)
        names = [name for each in rest for name in (topics[each].title, *topics[each].aliases)]
        ops.append(Merge(into, tuple(rest)))
        ops.append(Alias(into, tuple(dict.fromkeys((*topics[into].aliases, *names)))[:32]))
    return Plan(tuple(ops))


def _telling(topic: Topic, facts: Sequence[Fact]) -> set[str]:
    seen = Counter(term for fact in facts for term in terms_of(fact.text))
    often = [term for term, count in seen.most_common(20) if count > 1 or len(facts) < 4]
    return {*often, *terms_of(topic.title)}


def _pieces(facts: Sequence[Fact], weight: Mapping[int, int]) -> list[list[Fact]]:
    pieces: list[list[Fact]] = [[]]
    size = 0
    for fact in facts:
        if pieces[-1] and size + weight[fact.id] > _CAP:
            pieces.append([])
            size = 0
        pieces[-1].append(fact)
        size += weight[fact.id]
    return pieces


def _free(title: str, size: int, used: set[str], taken: Taken) -> str:
    """Return ``title``, numbered as far as is needed to have room for ``size`` bytes under it."""
    title = sane_title(title)
    for number in range(1, 10_000):
        name = title if number == 1 else f"{title} ({number})"
        there = taken(name)
        if folded(name) not in used and (there is None or there[1] + size <= LARGE_BYTES):
            used.add(folded(name))
            return name
    return title

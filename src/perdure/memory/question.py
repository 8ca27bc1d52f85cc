"""Take a question apart without a model: what it may start from, and which relations its words may name.

A nested question is read from the inside out. Whatever it starts from (the *anchor*) stands somewhere in the middle or
at the end; the relation that is followed first is named nearest to it, the next one farther out, on either side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from perdure.memory.edges import Key, Token, past, tokens_of, verbal
from perdure.memory.relations import KINDS, LIGHT, PLACES, RELATIONS, STOP, kin, named
from perdure.memory.wordlists import word_set

__all__ = ["Asked", "anchors_of", "asked"]

_LONGEST: Final = 80
_JOINS: Final = word_set("of the de la le du von van der den del di da and for in on to al el y s d's at by a an")
_QUOTED: Final = re.compile(r"[\"\u201c\u201e\u00ab]([^\"\u201c\u201d\u201e\u00ab\u00bb]{1,120})[\"\u201d\u201c\u00bb]")
_SINGLE: Final = re.compile(r"(?<!\w)['\u2018]([^'\u2018\u2019]{1,120})['\u2019](?!\w)")
_ANY_PLACE: Final = word_set("place location where area site somewhere")
_ALL_KINDS: Final = frozenset(word for words in KINDS.values() for word in words)
_RELATIVE: Final = word_set("that which who whom whose where when")
_AUX: Final = word_set("is are was were be been has had have does did do can could will")
_LONGEST_NAME: Final = 9
_ANCHORS: Final = 60


@dataclass(frozen=True, slots=True)
class Asked:
    """A question seen from one anchor: its tokens ``start`` to ``stop``.

    ``weights`` says what each token counts, ``cues`` for each relation which tokens may name it, and how well (0 to 1).
    ``kinds`` are the kinds of thing that it asks for, none where it does not say.
    """

    tokens: tuple[Token, ...]
    start: int
    stop: int
    weights: tuple[float, ...]
    cues: dict[str, dict[int, float]]
    kinds: frozenset[str]
    hopes: tuple[float, ...]
    """What each token can count where the best relation for it is found."""
    ranks: tuple[int, ...]
    """In which order tokens are come to when the question is read from the anchor outwards."""
    strong: frozenset[int]
    """Tokens that name some relation surely."""
    names: frozenset[int]
    """Tokens of other names than the anchor."""
    doing: frozenset[int]
    """Tokens of verbs behind the anchor: what it does, or what is done to it."""

    def by(self, tokens: Iterable[int]) -> bool:
        """Whether one of the tokens is followed by ``by``: who did it is known, and what was done is asked for."""
        return any(at + 1 < len(self.tokens) and self.tokens[at + 1].word == "by" for at in tokens)

    @property
    def total(self) -> float:
        return sum(self.weights)

    def hope(self, taken: int) -> float:
        """What explaining all that is not in the bits of ``taken`` might add."""
        return sum(weight for at, weight in enumerate(self.hopes) if not taken >> at & 1)

    def explained(
        self, words: frozenset[str], relation: str, gives: str, taken: int
    ) -> tuple[dict[int, float], int | None]:
        """Return the tokens, of those not in the bits of ``taken``, that a relation explains and how well, and the noun
        for the kind of thing that it leads to.

        Of a word that stands twice only the one that is come to first: the other belongs to another step.
        """
        cues = self.cues.get(relation, {})
        best: dict[str, tuple[int, int, float]] = {}
        free = [at for at, weight in enumerate(self.weights) if weight and not taken >> at & 1]
        for at in free:
            word = self.tokens[at].word
            how = cues.get(at, 0.0)
            if how < 1.0 and (word in words or any(kin(word, each) for each in words)):
                how = 1.0
            if how and (word not in best or self.ranks[at] < best[word][0]):
                best[word] = (self.ranks[at], at, how)
        found = {at: how for _, at, how in best.values()}
        if any(how == 1.0 for how in found.values()):
            found = {at: how for at, how in found.items() if how == 1.0 or at not in self.strong}
        nouns = KINDS.get(gives, _ALL_KINDS if found else frozenset())
        noun = min(
            (
                at
                for at in free
                if at not in found
                and (gives or at not in self.strong)
                and (self.tokens[at].word in nouns or (gives in PLACES and self.tokens[at].word in _ANY_PLACE))
            ),
            key=self.ranks.__getitem__,
            default=None,
        )
        return found, noun


def asked(question: str, start: int, stop: int) -> Asked:
    """Return a question as it is seen from its tokens ``start`` to ``stop``."""
    tokens = tokens_of(question)[:_LONGEST]
    line, places = "", []
    for at, token in enumerate(tokens):
        if start < at < stop:
            continue
        if line:
            line += " "
        places.append((len(line), at))
        line += "_" if at == start else token.word
    cues: dict[str, dict[int, float]] = {}
    for relation in RELATIONS:
        found: dict[int, float] = {}
        for pattern, how in ((relation.asks, 0.7), (relation.says, 1.0)):
            for match in pattern.finditer(line):
                for begin, at in places:
                    if match.start() <= begin < match.end() and not start <= at < stop:
                        found[at] = max(how, found.get(at, 0.0))
        if found:
            cues[relation.name] = found
    how_well: dict[int, float] = {}
    for each in cues.values():
        for at, how in each.items():
            how_well[at] = max(how, how_well.get(at, 0.0))
    weights = tuple(0.0 if start <= at < stop else _weight(token, at in how_well) for at, token in enumerate(tokens))
    strong = frozenset(at for at, how in how_well.items() if how == 1.0)
    hopes = tuple(weight * max(how_well.get(at, 1.0), 0.9) for at, weight in enumerate(weights))
    names = frozenset(at for at, token in enumerate(tokens) if at and not token.lower and weights[at])
    ranks, doing = _ranks(tokens, start, stop)
    return Asked(tokens, start, stop, weights, cues, _kinds(tokens, start, stop), hopes, ranks, strong, names, doing)


def _ranks(tokens: tuple[Token, ...], start: int, stop: int) -> tuple[tuple[int, ...], frozenset[int]]:
    """Read from the anchor outwards: owned nouns first, then to the left as far as a relative clause begins, then the
    next verb on the right, which belongs to that clause, and so on.

    "the capital of the country where X plays": plays, country, capital; "the person whom the aunt of X met": aunt, met.
    Returns the place of each token in that order, and which tokens were taken as such verbs.
    """
    doing: set[int] = set()
    ranks = [-1] * len(tokens)
    order = 0
    right = stop

    def verb(owned: bool) -> None:
        nonlocal right, order
        got = False
        while right < len(tokens):
            word = tokens[right].word
            plain = word in STOP
            if got and (word in _AUX or word == "s" or (not plain and not owned)):
                return
            ranks[right] = order
            if not owned:
                doing.add(right)
            order += 1
            right += 1
            got = got or not plain

    while right < len(tokens) and tokens[right].word == "s":
        right += 1
        verb(owned=True)
    for left in range(start - 1, -1, -1):
        token = tokens[left]
        after = tokens[left + 1].word
        alone = left + 1 == start or after in ("the", "a", "an")
        plain = token.word in STOP
        subject = token.word in _RELATIVE and (after in _AUX or (tokens[left + 1].lower and verbal(after)))
        if (token.word in _RELATIVE and not subject) or (alone and token.lower and not plain and not past(token.word)):
            verb(owned=False)
        ranks[left] = order
        order += 1
    for at in range(right, len(tokens)):
        ranks[at] = order
        order += 1
    return tuple(ranks), frozenset(doing)


def _weight(token: Token, cued: bool) -> float:
    if token.word in STOP or token.word == "s":
        return 0.0
    if token.word in LIGHT:
        return 0.2
    if token.word in _ALL_KINDS:
        return 0.5
    return 1.0 if cued or not token.lower else 0.7


def _kinds(tokens: tuple[Token, ...], start: int, stop: int) -> frozenset[str]:
    """The kinds of thing that the question word asks for."""
    for at, token in enumerate(tokens):
        if start <= at < stop:
            continue
        if token.word in ("who", "whom"):
            return frozenset(["person", ""])
        if token.word == "where":
            return PLACES
        if token.word == "when":
            return frozenset(["time"])
        if token.word in ("which", "what"):
            for more in range(at + 1, min(at + 7, len(tokens))):
                word = tokens[more].word
                if start <= more < stop:
                    break
                if word in _ANY_PLACE:
                    return PLACES
                kinds = frozenset(kind for kind, nouns in KINDS.items() if word in nouns)
                if kinds:
                    return kinds
                if word not in STOP and word not in LIGHT:
                    break
            return frozenset()
    return frozenset()


def anchors_of(question: str) -> Iterator[tuple[Key, int, int, bool]]:
    """Yield what a question may start from, the likeliest first: (key, first token, behind the last one, is a name).

    First what stands in quotation marks, then names with what is written small around them, then any words that are
    no words of relations: those are no names. At most 60.
    """
    tokens = tokens_of(question)[:_LONGEST]
    seen: set[tuple[int, int]] = set()
    names = [*_in_quotes(question, tokens), *_capital(tokens)]
    for at, (start, stop) in enumerate([*names, *_small(tokens)]):
        while start < stop - 1 and tokens[start].word in ("the", "a", "an"):
            start += 1
        if (start, stop) in seen or not start < stop <= start + _LONGEST_NAME + 4:
            continue
        seen.add((start, stop))
        yield tuple(each.word for each in tokens[start:stop]), start, stop, at < len(names)
        if len(seen) >= _ANCHORS:
            return


def _in_quotes(question: str, tokens: tuple[Token, ...]) -> Iterator[tuple[int, int]]:
    for pattern in (_QUOTED, _SINGLE):
        for match in pattern.finditer(question):
            inside = [at for at, each in enumerate(tokens) if match.start(1) <= each.start < match.end(1)]
            if inside:
                yield inside[0], inside[-1] + 1


def _capital(tokens: tuple[Token, ...]) -> list[tuple[int, int]]:
    """Names: from one capitalised word to another with small joining words between, or a few small words around."""
    big = [at for at, each in enumerate(tokens) if not each.lower and not (at == 0 and each.word in STOP)]
    found: list[tuple[int, int, int]] = []
    for first in big:
        stop = first + 1
        while stop < len(tokens) and stop - first < _LONGEST_NAME:
            if not tokens[stop].lower or tokens[stop].word in _JOINS:
                stop += 1
            else:
                break
        found += [(last - first, first, last) for last in range(stop, first, -1) if not tokens[last - 1].lower]
        for more in range(1, 4):
            if (
                stop + more <= len(tokens)
                and tokens[stop + more - 1].word not in STOP
                and tokens[stop - 1].word not in STOP
            ):
                found.append((stop + more - first, first, stop + more))
            else:
                break
        for less in (1, 2):
            if first - less >= 0 and tokens[first - less].lower and tokens[first - less].word not in STOP:
                found.append((stop - first + less, first - less, stop))
            else:
                break
    return [(first, last) for _, first, last in sorted(found, key=lambda each: (-each[0], -each[1]))]


def _small(tokens: tuple[Token, ...]) -> list[tuple[int, int]]:
    """Things that are written small, as a game or an instrument: runs of up to four words that are no padding."""
    found: list[tuple[int, int, int]] = []
    for first in range(len(tokens)):
        for last in range(first + 1, min(first + 5, len(tokens) + 1)):
            ends = (tokens[first].word, tokens[last - 1].word)
            if any(each in STOP or each in LIGHT for each in ends):
                continue
            if last - first == 1 and (ends[0] in _ALL_KINDS or named(ends[0]) is not None):
                continue
            found.append((last - first, first, last))
    return [(first, last) for _, first, last in sorted(found, key=lambda each: (-each[0], -each[1]))]

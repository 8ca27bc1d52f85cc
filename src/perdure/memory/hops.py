"""Answer a nested question by following facts: "the capital of the country of the author of X", without a model.

A beam search over paths of at most four facts. Each step goes from a thing to another one by a fact that is current,
and explains words of the question: by the words that the statement itself has, or by the table of `relations`. The best
path leaves the least unexplained, follows the nesting of the question, and ends in the kind of thing that it asks for.
What explains too little is not given: then the question is one for plain search.

The work is bounded by the number of look-ups and by a deadline, whatever the facts are: a thing with ten thousand facts
costs a few look-ups, by the words of the relations that the question names.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perdure.memory.edges import Edge, Key, edges_of, key_of
from perdure.memory.mentions import Finder, Mention
from perdure.memory.question import Asked, anchors_of, asked
from perdure.memory.records import Fact, Hit
from perdure.memory.relations import DONE_BY, PLACES, RELATIONS, STOP, kin

__all__ = ["SURE", "Chain", "best_chain", "follow", "hits_of"]

SURE: Final = 0.5
"""From this score on a chain of two facts or more without doubts is a better answer than one-hop search."""

_HOPS: Final = 4
_GROWN: Final = 40
_STEPS: Final = 8
_FEW: Final = 64
_SOME: Final = 24
_LOOKUPS: Final = 400
_ANCHORS: Final = 3
_NOUN: Final = 0.9
_HIDDEN, _ORDER, _BACK, _LOOSE, _KIND, _ONLY = 0.18, 0.1, 0.2, 0.12, 0.15, 0.06
_SAME: Final = frozenset(["_ is", "_ was", "_ are", "_ were"])
_SILENT: Final = PLACES | {"job", "sport", "genre", "religion", "language"}
"""Kinds of things that questions pass over: a club's country is that of its sport, a town's continent its country's."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A path of facts that answers a question, from the one that names what it starts from to the one that ends it.

    ``answer`` is the text from ``start`` to ``stop`` of the last fact. ``score`` is at most 1; ``unexplained`` are
    words of the question that no step stands for.
    """

    facts: tuple[Fact, ...]
    start: int
    stop: int
    score: float
    unexplained: tuple[str, ...]
    doubts: int = 0
    """Steps that the question does not ask for in so many words, or not in that order or direction."""

    @property
    def sure(self) -> bool:
        """Whether it is a better answer than what one-hop search finds first."""
        return len(self.facts) > 1 and not self.doubts and self.score >= SURE

    @property
    def answer(self) -> str:
        return self.facts[-1].text[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class _Step:
    fact: Fact
    edge: Edge
    to: Key
    words: frozenset[str]
    settled: bool
    older: bool
    """Whether a newer fact says the same kind of thing of the same one, in other words."""
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class _Path:
    at: Key
    steps: tuple[_Step, ...]
    taken: int
    gained: float
    lost: float
    hidden: bool
    nearest: int
    doubts: int


class _Search:
    """One question: what was looked up for it, and how much more may be."""

    def __init__(self, finder: Finder, question: str, clock: Callable[[], float], until_s: float) -> None:
        self.finder = finder
        self.clock = clock
        self.until_s = until_s
        self.lookups = 0
        self.known: dict[Key, list[_Step]] = {}
        view = asked(question, 0, 0)
        cued = sorted(
            (each for each in RELATIONS if each.name in view.cues),
            key=lambda each: -sum(view.weights[at] * how for at, how in view.cues[each.name].items()),
        )
        own = tuple(each.word for each, weight in zip(view.tokens, view.weights, strict=True) if weight >= 0.7)
        self.narrow: list[tuple[str, ...]] = [each.words for each in cued[:6]]
        rest = tuple(word for each in cued[6:16] for word in each.words)
        self.narrow += [rest] if rest else []
        self.own = own

    @property
    def spent(self) -> bool:
        return self.lookups >= _LOOKUPS or self.clock() > self.until_s

    def look(self, name: Key, with_any: Sequence[str], limit: int) -> list[Mention]:
        if self.spent:
            return []
        self.lookups += 1
        return self.finder.mentions(name, with_any=with_any, limit=limit)

    def steps(self, thing: Key) -> list[_Step]:
        """What leads from a thing to others, by facts that hold."""
        known = self.known.get(thing)
        if known is None:
            found = {each.fact.id: each for each in self.look(thing, (), _FEW)}
            if len(found) >= _FEW:
                for few in [self.own, *self.narrow]:
                    words = tuple(each for each in few if not any(kin(each, word) for word in thing))
                    if words:
                        found.update((each.fact.id, each) for each in self.look(thing, words, _SOME))
            known = self.known[thing] = _steps(thing, list(found.values()))
        return known

    def holds(self, step: _Step, thing: Key) -> bool:
        """Whether the subject of a fact that was come to from its end has no newer fact of the same words."""
        newest = [each for each in self.steps(step.to) if each.edge.words == step.edge.words and not each.edge.backward]
        return not newest or any(each.to == thing for each in newest)


def follow(
    question: str,
    finder: Finder,
    *,
    limit: int = 3,
    deadline_s: float = 0.5,
    clock: Callable[[], float] = time.monotonic,
) -> list[Chain]:
    """Return the best chains for a question, the best first; none where nothing in it names a thing of the facts.

    A chain of one fact is what one-hop search finds as well; it is given so that scores can be compared. After
    ``deadline_s`` seconds the best of what was seen by then is returned.
    """
    search = _Search(finder, question, clock, clock() + deadline_s)
    chains: list[Chain] = []
    anchors: list[tuple[int, int]] = []
    for thing, start, stop, name in anchors_of(question):
        if search.spent or len(anchors) == _ANCHORS or (anchors and not name):
            break
        if any(start >= first and stop <= last for first, last in anchors):
            continue
        if any(each.edge.exact for each in search.steps(thing)):
            anchors.append((start, stop))
            chains += _paths(search, thing, asked(question, start, stop))
    best: dict[tuple[int, int], Chain] = {}
    for chain in sorted(chains, key=lambda each: -each.score):
        best.setdefault((chain.facts[-1].id, chain.start), chain)
    return list(best.values())[:limit]


def _paths(search: _Search, thing: Key, view: Asked) -> list[Chain]:
    """Best first: the path that explains most so far goes on, until no other can come to explain more."""
    total = view.total
    if not total:
        return []
    queue = [(0.0, 0, _Path(thing, (), 0, 0.0, 0.0, False, -1, 0))]
    found: list[Chain] = []
    best, made = 0.0, 1
    for _ in range(_GROWN):
        if not queue or search.spent:
            break
        _, _, path = heapq.heappop(queue)
        if len(path.steps) == _HOPS or path.gained - path.lost + view.hope(path.taken) / total <= best:
            continue
        for each in _longer(search, path, view, total):
            if not each.steps[-1].hidden:
                found.append(_chain(each, view))
                best = max(best, found[-1].score)
            heapq.heappush(queue, (each.lost - each.gained, made, each))
            made += 1
    return found


def _longer(search: _Search, path: _Path, view: Asked, total: float) -> list[_Path]:
    """The paths that go one step on, the best few."""
    found: list[_Path] = []
    before = {each.fact.id for each in path.steps}
    for step in search.steps(path.at):
        if step.fact.id in before:
            continue
        relation = step.edge.relation
        gives = relation.gives if relation is not None and not step.edge.backward else ""
        explained, noun = view.explained(step.words, relation.name if relation is not None else "", gives, path.taken)
        gained = sum(view.weights[at] * how for at, how in explained.items())
        hidden = gained < 0.15
        lost = 0.01 + 0.02 * step.older
        if noun is not None:
            gained += _NOUN * view.weights[noun]
            if hidden and view.weights[noun] >= 0.5:
                hidden, lost = False, lost + _ONLY
        same = hidden and step.edge.words in _SAME
        hidden = hidden and not same
        if hidden and (path.hidden or step.edge.backward):
            continue
        doubts = path.doubts + (hidden and gives not in _SILENT)
        lost += _HIDDEN * hidden + _LOOSE * (not step.edge.exact)
        strong = [at for at, how in explained.items() if how >= 0.7 and view.weights[at] >= 0.5]
        if step.edge.backward and not (
            view.by(explained) or (relation is not None and relation.name in DONE_BY and view.doing & explained.keys())
        ):
            lost += _BACK
            doubts += 1
        nearest = min((view.ranks[at] for at in strong), default=path.nearest)
        lost += _ORDER * (nearest < path.nearest)
        doubts += nearest < path.nearest
        taken = path.taken
        for at in explained if noun is None else [*explained, noun]:
            taken |= 1 << at
        found.append(
            _Path(
                step.to,
                (*path.steps, replace(step, hidden=hidden)),
                taken,
                path.gained + gained / total,
                path.lost + lost,
                path.hidden or hidden,
                nearest,
                doubts,
            )
        )
    found.sort(key=lambda each: each.lost - each.gained)
    kept: list[_Path] = []
    for each in found:
        if len(kept) == _STEPS:
            break
        last = each.steps[-1]
        if not last.edge.backward or last.settled or search.holds(last, path.at):
            kept.append(each)
    return kept


def _chain(path: _Path, view: Asked) -> Chain:
    last = path.steps[-1]
    relation = last.edge.relation
    gives = relation.gives if relation is not None and not last.edge.backward else ""
    lost = path.lost
    if view.kinds and gives not in view.kinds:
        lost += _KIND if gives or last.edge.backward else 0.0
    left = tuple(
        each.word for at, each in enumerate(view.tokens) if view.weights[at] > 0.2 and not path.taken >> at & 1
    )
    return Chain(
        tuple(each.fact for each in path.steps),
        last.edge.start,
        last.edge.stop,
        round(path.gained - lost, 4),
        left,
        path.doubts + any(view.weights[at] >= 0.5 and not path.taken >> at & 1 for at in view.strong | view.names),
    )


def _steps(thing: Key, mentions: list[Mention]) -> list[_Step]:
    """The edges of the facts that name a thing; of the same words for the same thing only the newest, unless rules
    have settled that all of them hold."""
    mentions.sort(key=lambda each: (each.fact.observed_s, each.fact.id), reverse=True)
    found: list[_Step] = []
    newest: dict[str, bool] = {}
    relations: dict[str, str] = {}
    for each in mentions:
        for edge in edges_of(each.fact.text, thing):
            to = key_of(each.fact.text[edge.start : edge.stop])
            if not to or to == thing:
                continue
            if not edge.backward and edge.exact and not newest.setdefault(edge.words, each.settled):
                newest[edge.words] = False
                if any(one.edge.words == edge.words and not one.edge.backward and one.edge.exact for one in found):
                    continue
            words = frozenset(word for word in edge.words.split() if word not in STOP and word not in ("_", "s"))
            older = False
            if edge.relation is not None and not edge.backward:
                older = relations.setdefault(edge.relation.name, edge.words) != edge.words
            found.append(_Step(each.fact, edge, to, words, each.settled, older))
    if any(one.edge.exact and not one.edge.backward for one in found):
        found = [one for one in found if one.edge.exact or one.edge.backward]
    return found


def best_chain(question: str, finder: Finder, *, doubts: int = 0, deadline_s: float = 0.5) -> Chain | None:
    """Return the best chain, None where plain search is as good.

    That is: fewer than two facts, a score below `SURE`, or more than ``doubts`` steps that the question does not ask
    for in so many words.
    """
    for chain in follow(question, finder, limit=1, deadline_s=deadline_s):
        if len(chain.facts) > 1 and chain.score >= SURE and chain.doubts <= doubts:
            return chain
    return None


def hits_of(chain: Chain) -> list[Hit]:
    """The facts of a chain as hits, the one with the answer first."""
    last = len(chain.facts)
    return [
        Hit(fact, chain.score, f"hop {at} of {last}" + (f": {chain.answer}" if at == last else ""))
        for at, fact in reversed(list(enumerate(chain.facts, 1)))
    ]

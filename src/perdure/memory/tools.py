"""The tools by which a model, or another agent, reads a memory. None of them can write.

Each call has bounded arguments and a budget of bytes; what it returns is quoted data (see `rendering`), and which
facts it showed, so that an answer can be held to what was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.errors import CallError
from perdure.memory.grepping import Pattern
from perdure.memory.grepping_evidence import LAST, grep
from perdure.memory.moments import bounds_of, moment_of
from perdure.memory.records import Fact, Hit, State, Topic, number_of
from perdure.memory.rendering import block, describe_evidence, describe_fact, quote
from perdure.memory.resolving import Resolved, chain, resolved
from perdure.memory.shelf import Page, Shelf
from perdure.memory.tool_arguments import (
    ALL,
    Arguments,
    Done,
    Grep,
    History,
    ListTopics,
    OfEvidence,
    Read,
    Resolve,
    Search,
    Timeline,
    Tool,
    parsed,
)

__all__ = ["Result", "Tools"]

_BUDGET: Final = 4096
_LINE_SHOWN: Final = 1000
_EVER: Final = (-1e18, 1e18)


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool returns: ``text`` to read, and what it showed. ``after`` is where to go on, None at the end."""

    text: str
    facts: tuple[int, ...] = ()
    evidence: tuple[int, ...] = ()
    topics: tuple[int, ...] = ()
    after: int | str | None = None


class Tools:
    """The reading tools over one memory: `Memory.tools` makes them. Safe to use from any thread."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    @property
    def all(self) -> tuple[Tool, ...]:
        """The tools, with their descriptions and schemas."""
        return tuple(ALL.values())

    def call(self, name: str, arguments: Mapping[str, Any] | Arguments, *, budget_bytes: int = _BUDGET) -> Result:
        """Carry out a call; the text of its result has at most about ``budget_bytes`` bytes.

        Raises `CallError`, with a sentence for whoever called, for an unknown tool, arguments that do not fit or an
        id that there is not.
        """
        asked = arguments if isinstance(arguments, Arguments) else parsed(name, arguments)
        if not 200 <= budget_bytes <= 10_000_000:
            raise CallError(f"a budget has 200 to 10,000,000 bytes, not {budget_bytes}")
        match asked:
            case Search():
                return self._search(asked, budget_bytes)
            case Grep():
                return self._grep(asked, budget_bytes)
            case Read():
                return self._read(asked, budget_bytes)
            case ListTopics():
                return self._list_topics(asked, budget_bytes)
            case Timeline():
                return self._timeline(asked, budget_bytes)
            case History():
                return self._history(asked, budget_bytes)
            case Resolve():
                return self._resolve(asked, budget_bytes)
            case OfEvidence():
                return self._evidence(asked, budget_bytes)
            case Done():
                return Result(asked.answer, tuple(self.cited(asked.citations)))
        raise CallError(f"there is no tool {name[:40]!r}; there are {', '.join(ALL)}")

    def cited(self, names: Iterable[str]) -> dict[int, Fact]:
        """The facts of citations, in their order; evidence stands for its facts.

        Raises `CallError` that names the first citation of what there is not.
        """
        found: dict[int, Fact] = {}
        for name in names:
            letter = name.strip().strip("[]^").lower()
            if letter.startswith("e"):
                page = self._page(number_of(letter, "e"))
                found |= {each.id: each for each in page.facts[:5]}
            else:
                fact = self._fact(letter)
                found[fact.id] = fact
        return found

    def _search(self, asked: Search, budget: int) -> Result:
        hits = self.shelf.search(asked.query, limit=asked.limit, history=asked.history)
        title = f"{len(hits)} facts, best first:" if hits else "no fact fits these words; try others, or grep"
        return self.hits(title, hits, budget)

    def hits(self, title: str, hits: Sequence[Hit], budget: int) -> Result:
        """Show hits that were found already, as many as ``budget`` bytes have room for."""
        return self._facts(title, [hit.fact for hit in hits], budget, [_standing(hit) for hit in hits])

    def _facts(self, title: str, facts: Sequence[Fact], budget: int, remarks: Sequence[str] = ()) -> Result:
        lines = [
            describe_fact(fact, remark=remarks[at] if remarks else "", longest=max(80, min(600, budget // 4)))
            for at, fact in enumerate(facts)
        ]
        text, shown = block(title, lines, budget_bytes=budget - 60)
        if shown < len(facts):
            text += f"\n(no room for {len(facts) - shown} more; ask for fewer or more exactly)"
        return Result(text, tuple(fact.id for fact in facts[:shown]), tuple({fact.evidence for fact in facts[:shown]}))

    def _grep(self, asked: Grep, budget: int) -> Result:
        found = grep(
            self.shelf, Pattern(asked.pattern, regex=asked.regex), after=_place(asked.after), limit=asked.limit
        )
        lines = [each.described() for each in found.lines]
        text, shown = block(f"{len(lines)} lines:" if lines else "no line has it", lines, budget_bytes=budget - 80)
        why, at = found.why, found.at
        if shown < len(lines):
            why, at = "no room for more", (found.lines[shown - 1].place if shown else _place(asked.after))
        after = f"e{at[0]}" + ("" if at[1] == LAST else f":{at[1]}") if why else None
        if after is not None:
            text += f"\n({why}; go on with after={after})"
        facts = tuple(fact.id for each in found.lines[:shown] for fact in each.facts)
        return Result(text, facts, tuple({each.place[0] for each in found.lines[:shown]}), after=after)

    def _read(self, asked: Read, budget: int) -> Result:
        name = asked.id.strip().lower()
        if name.startswith("t"):
            return self._read_topic(asked, budget)
        line = asked.line
        if name.startswith("f"):
            fact = self._fact(name)
            page = self._page(fact.evidence)
            if asked.start is None and line == 1:
                line = max(1, page.text.count("\n", 0, fact.start) + 1 - asked.lines // 4)
        else:
            page = self._page(number_of(name, "e"))
        title = f"{describe_evidence(page.evidence)}; {len(page.text)} characters"
        if asked.start is not None or asked.stop is not None:
            start = min(asked.start or 0, len(page.text))
            stop = min(asked.stop if asked.stop is not None else len(page.text), start + budget)
            spans = [(start, min(stop, len(page.text)))]
            label = [f"[characters {start} to {spans[0][1]}]"]
        else:
            spans, label, number = [], [], 0
            begin = 0
            for number, each in enumerate(page.text.split("\n"), 1):
                if line <= number < line + asked.lines:
                    spans.append((begin, begin + len(each)))
                    label.append(f"[line {number}]")
                begin += len(each) + 1
            title += f", {number} lines"
        return self._spans(title, page, spans, label, budget)

    def _spans(
        self, title: str, page: Page, spans: Sequence[tuple[int, int]], label: Sequence[str], budget: int
    ) -> Result:
        room = budget - len(title.encode()) - 320
        most = max(80, min(_LINE_SHOWN, room // 3) if len(spans) > 1 else room)
        lines: list[str] = []
        seen: list[list[int]] = []
        cut = False
        for (start, stop), what in zip(spans, label, strict=True):
            quoted = quote(page.text[start:stop], longest=most)
            cut = cut or quoted.endswith('…"')
            stop = min(stop, start + most)
            inside = [fact for fact in page.facts if fact.start < stop and fact.stop > start][:8]
            lines.append(f"{what}{''.join(f' {fact.name}' for fact in inside)} {quoted}")
            seen.append([fact.id for fact in inside])
        text, shown = block(title, lines, budget_bytes=budget - 110)
        if shown < len(lines):
            text += f"\n(no room for {len(lines) - shown} more; read fewer lines)"
        elif cut:
            text += "\n(what ends in … is cut; read characters by start and stop)"
        if not lines:
            text += "\n(nothing stands there)"
        return Result(text, tuple(each for some in seen[:shown] for each in some), (page.evidence.id,))

    def _read_topic(self, asked: Read, budget: int) -> Result:
        number = number_of(asked.id.strip().lower(), "t")
        topic = self._topic(number)
        after, skipped = 0, asked.line - 1
        while skipped > 0:
            some = self.shelf.facts_between(*_EVER, topic=topic.id, after=after, limit=min(skipped, 500))
            if not some:
                break
            after, skipped = some[-1].id, skipped - len(some)
        facts = self.shelf.facts_between(*_EVER, topic=topic.id, after=after, limit=asked.lines) if not skipped else []
        title = f"{topic.name}, facts from number {asked.line} on, in the order in which they were told:"
        result = self._facts(title, facts, budget - 200)
        head = f"{topic.name} {quote(topic.title, longest=80)}"
        return Result(f"{head}\n{result.text}", result.facts, result.evidence, (topic.id,))

    def _topic(self, number: int) -> Topic:
        for _ in range(20):
            found, _count = self.shelf.topics(ids=[number], limit=1)
            if not found:
                break
            if found[0].into is None:
                return found[0]
            number = found[0].into
        raise CallError(f"there is no topic t{number}; list_topics shows them")

    def _list_topics(self, asked: ListTopics, budget: int) -> Result:
        topics, count = self.shelf.topics(after=asked.after, limit=asked.limit)
        lines = [
            f"[{each.name}] {quote(each.title, longest=80)}: {quote(each.summary, longest=200)}" for each in topics
        ]
        text, shown = block(f"{len(topics)} of {count} topics:", lines, budget_bytes=budget - 60)
        last = topics[shown - 1].id if shown else asked.after
        more = shown < len(topics) or bool(topics and self.shelf.topics(after=last, limit=1)[0])
        if more:
            text += f"\n(go on with after={last})"
        return Result(text, topics=tuple(each.id for each in topics[:shown]), after=last if more else None)

    def _timeline(self, asked: Timeline, budget: int) -> Result:
        since = _moment(asked.since)[0] if asked.since else _EVER[0]
        before = _moment(asked.until)[1] if asked.until else _EVER[1]
        if asked.about.strip():
            hits = self.shelf.search(asked.about, limit=min(asked.limit * 3, 100), history=True)
            found = sorted(
                (hit.fact for hit in hits if since <= hit.fact.observed_s < before),
                key=lambda fact: (fact.observed_s, fact.id),
            )
            at = next((at for at, fact in enumerate(found, 1) if fact.id == asked.after), 0)
            facts = found[at : at + asked.limit]
        else:
            facts = self.shelf.facts_between(since, before, topic=None, after=asked.after, limit=asked.limit)
        title = f"{len(facts)} facts in the order in which they were told:" if facts else "nothing was told then"
        result = self._facts(title, facts, budget)
        after = result.facts[-1] if result.facts and len(facts) >= asked.limit else None
        text = result.text + (f"\n(go on with after={after})" if after is not None else "")
        return Result(text, result.facts, result.evidence, after=after)

    def _history(self, asked: History, budget: int) -> Result:
        first = self._fact(asked.fact)
        links = chain(self.shelf, first.id)
        seen = {first.id} | {each for link in links for each in (link.fact, link.other)}
        facts = sorted(self.shelf.facts(seen).values(), key=lambda fact: (fact.observed_s, fact.id))
        remarks = [
            ", ".join(f"{link.kind.value} f{link.other}" for link in links if link.fact == fact.id) for fact in facts
        ]
        title = f"{len(facts)} facts, oldest first:" if links else "nothing replaces, repeats or contradicts it:"
        return self._facts(title, facts, budget, remarks)

    def _resolve(self, asked: Resolve, budget: int) -> Result:
        hits = self.shelf.search(asked.question, limit=10, history=False)
        hits = hits or self.shelf.search(asked.question, limit=10, history=True)
        found = resolved(self.shelf, hits)
        if found is None:
            return Result("nothing in this memory fits; there is nothing to choose from")
        facts = [found.winner, *found.against, *found.also, *found.before]
        remarks = [
            found.why,
            *["says otherwise, with no less authority"] * len(found.against),
            *["of the same, and holds too"] * len(found.also),
            *["no longer holds"] * len(found.before),
        ]
        return self._facts(_resolution(found), facts, budget, remarks)

    def _evidence(self, asked: OfEvidence, budget: int) -> Result:
        name = asked.id.strip().lower()
        number = self._fact(name).evidence if name.startswith("f") else number_of(name, "e")
        page = self._page(number)
        title = f"{describe_evidence(page.evidence)}; {len(page.text)} characters"
        return self._spans(title, page, [(0, len(page.text))], ["[from the beginning]"], budget)

    def _fact(self, name: str) -> Fact:
        number = number_of(name.strip().lower(), "f")
        fact = self.shelf.facts([number]).get(number)
        if fact is None:
            raise CallError(f"there is no fact f{number} in this memory; use ids that were shown")
        return fact

    def _page(self, number: int) -> Page:
        pages = self.shelf.pages_from(number, limit=1)
        if not pages or pages[0].evidence.id != number:
            raise CallError(f"there is no evidence e{number} in this memory; use ids that were shown")
        return pages[0]


def _standing(hit: Hit) -> str:
    parts = [f"replaced by {' '.join(f'f{each}' for each in hit.by[:3])}"] if hit.by else []
    if hit.conflicts:
        parts.append(f"contradicted by {' '.join(f'f{each}' for each in hit.conflicts[:3])}")
    return ", ".join(parts)


def _resolution(found: Resolved) -> str:
    if found.against:
        return "in conflict; first what the rules prefer, then what says otherwise:"
    return "what holds now:" if found.winner.state is State.CURRENT else "only this, which no longer holds:"


def _place(after: str) -> tuple[int, int]:
    """The evidence and the line in e3:12; e3 alone is all of it."""
    if not after:
        return 0, 0
    evidence, _, line = after.strip().partition(":")
    return number_of(evidence, "e"), number_of(line, "") if line else LAST


def _moment(text: str) -> tuple[float, float]:
    """The first second of a time as exact as it is written, and the first after it."""
    first, after = bounds_of(text) or (moment_of(text, now_s=0.0)[1],) * 2
    return first, after if after > first else first + 0.001

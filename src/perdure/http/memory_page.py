"""The page of memories: topics with what holds, what contradicts what and what was; behind each fact, who said so.

Whatever was told is foreign text: it is escaped, and control and invisible characters are shown as what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.errors import CallError
from perdure.http.jobs import Jobs
from perdure.http.memories import MOST, FactSeen, Memories, Space, TopicSeen
from perdure.http.pages import Page, day, esc, respond, tag
from perdure.memory import Change, Evidence, Fact, Hit, Link, Topic
from perdure.memory.plain import visible, who_of

__all__ = ["PAGE"]

_LATEST: Final = 20
_WINDOW: Final = 20_000
_MOST_FOUND: Final = 50


def _routes(jobs: Jobs) -> list[BaseRoute]:
    memories = jobs.memories

    def everything(request: Request) -> Response:
        return respond(request, _list(memories), title="Memory", live=False)

    def one(request: Request) -> Response:
        space = memories.get(request.path_params["space"])
        return respond(request, _space(space, request), title=f"memory {visible(space.name)}", live=False)

    def topic(request: Request) -> Response:
        space = memories.get(request.path_params["space"])
        seen = space.topic(request.path_params["name"])
        return respond(request, _topic(space, seen), title=visible(seen.topic.title), live=False)

    def fact(request: Request) -> Response:
        space = memories.get(request.path_params["space"])
        seen = space.fact(request.path_params["name"])
        return respond(request, _fact(space, seen), title=seen.fact.name, live=False)

    def evidence(request: Request) -> Response:
        space = memories.get(request.path_params["space"])
        found, facts = space.evidence(request.path_params["name"])
        start = _count(request, "start")
        return respond(request, _evidence(space, found, facts, start), title=found.name, live=False)

    return [
        Route("/memory", everything),
        Route("/memory/{space}", one),
        Route("/memory/{space}/topics/{name}", topic),
        Route("/memory/{space}/facts/{name}", fact),
        Route("/memory/{space}/evidence/{name}", evidence),
    ]


PAGE: Final = Page("Memory", "/memory", _routes)


def _list(memories: Memories) -> str:
    names = memories.names()
    if not names:
        what = "There is no memory here yet." if memories.root is not None else "No memory is shown."
        how = "perdure memory observe keeps what perdure console --memory DIR shows."
        return "<h1>Memory</h1>" + tag("p", f"{what} {how}", class_="quiet")
    rows = "".join(f"<tr>{tag('th', inside=_link(_path(key), name), scope='row')}</tr>" for key, name in names.items())
    head = tag("th", "memory", scope="col")
    return (
        f'<h1>Memory</h1><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _space(space: Space, request: Request) -> str:
    question = request.query_params.get("q", "").strip()[:1000]
    history = request.query_params.get("history") == "1"
    topics, count = space.topics(after=_count(request, "after"))
    status = space.memory.status()
    said = f"{status.facts} facts from {status.evidence} tellings"
    found = ""
    if question:
        hits = space.memory.search(question, limit=_MOST_FOUND, history=history)
        found = _section("Found", _hits(space, hits), "found")
    more = ""
    if topics and len(topics) == MOST:
        more = f"<p>{_link(f'{_path(space.key)}?after={topics[-1].id}', 'More topics')}</p>"
    return (
        f"{_head(space, visible(space.name), said)}{_search(space, question, history)}{found}"
        f"{_section(f'Topics ({count})', _topics(space, topics) + more, 'topics')}"
        f"{_section('Told last', _facts(space, space.latest(_LATEST)), 'latest')}"
        f"{_section('Changes', _changes(space.changes()), 'changes')}"
    )


def _head(space: Space, title: str, said: str) -> str:
    back = _link(_path(space.key), visible(space.name))
    return (
        f'<section id="head" aria-labelledby="memory-title"><p class="quiet">{_link("/memory", "Memory")} / {back}</p>'
        f'<h1 id="memory-title">{esc(title)}</h1>{tag("p", said, class_="command")}</section>'
    )


def _search(space: Space, question: str, history: bool) -> str:
    checked = " checked" if history else ""
    return (
        '<section aria-label="Search">'
        f'<form class="search" method="get" action="{esc(_path(space.key))}" role="search">'
        f'<label for="q">Question</label><input id="q" name="q" type="search" value="{esc(visible(question))}" '
        f'maxlength="1000"><label><input type="checkbox" name="history" value="1"{checked}> also what was replaced'
        "</label><button>Search</button></form></section>"
    )


def _topics(space: Space, topics: Sequence[Topic]) -> str:
    if not topics:
        return tag("p", "Nothing is sorted into topics yet.", class_="quiet")
    rows = "".join(
        f"<tr>{tag('th', inside=_link(_path(space.key, 'topics', each.name), visible(each.title)), scope='row')}"
        f"{tag('td', visible(each.summary), class_='said')}</tr>"
        for each in topics
    )
    return _table(("topic", "summary"), rows)


def _topic(space: Space, seen: TopicSeen) -> str:
    topic = seen.topic
    also = f"also: {', '.join(map(visible, topic.aliases))}" if topic.aliases else topic.name
    more = tag("p", f"Only the newest {MOST} facts are shown.", class_="quiet") if seen.more else ""
    against = "".join(
        f"<tr>{_said(space, one)}{_said(space, other)}{tag('td', visible(link.reason))}</tr>"
        for one, other, link in seen.conflicts
    )
    conflicts = _section("Conflicts", _table(("one", "the other", "why"), against), "conflicts") if against else ""
    summary = tag("p", visible(topic.summary)) if topic.summary else ""
    return (
        f"{_head(space, visible(topic.title), also)}{summary}{more}{conflicts}"
        f"{_section('Current', _facts(space, seen.current), 'current')}"
        f"{_section('History', _facts(space, seen.past), 'history')}"
    )


def _facts(space: Space, facts: Sequence[Fact]) -> str:
    if not facts:
        return tag("p", "There is none.", class_="quiet")
    rows = "".join(f"<tr>{_said(space, each)}{_told(space, each)}</tr>" for each in facts)
    return _table(("fact", "who", "told", "holds", "state", "from"), rows)


def _hits(space: Space, hits: Sequence[Hit]) -> str:
    if not hits:
        return tag("p", "Nothing fits that question.", class_="quiet")
    return _facts(space, [each.fact for each in hits])


def _said(space: Space, fact: Fact) -> str:
    return tag("td", inside=_link(_path(space.key, "facts", fact.name), visible(fact.text)), class_="said")


def _told(space: Space, fact: Fact) -> str:
    times = (("since", fact.since), ("until", fact.until))
    holds = " ".join(f"{word} {at[:10]}" for word, at in times if at)
    source = _link(_path(space.key, "evidence", f"e{fact.evidence}"), f"e{fact.evidence}")
    return (
        f"{tag('td', who_of(fact))}{tag('td', visible(fact.observed[:10]), class_='n')}"
        f"{tag('td', visible(holds), class_='n')}{tag('td', inside=_pill(fact))}{tag('td', inside=source)}"
    )


def _pill(fact: Fact) -> str:
    return tag("span", fact.state.value, class_=f"pill fact-{fact.state.value}")


def _fact(space: Space, seen: FactSeen) -> str:
    fact = seen.fact
    said = f"{fact.state.value}; {who_of(fact)}, told {fact.observed}"
    topic = ""
    if fact.topic is not None:
        name = f"t{fact.topic}"
        topic = f"<p>In topic {_link(_path(space.key, 'topics', name), name)}.</p>"
    chain = ""
    if seen.links:
        rows = "".join(
            f"<tr>{_said(space, each)}{_told(space, each)}{tag('td', _bonds(each, seen.links), class_='said')}</tr>"
            for each in seen.facts
        )
        chain = _section("History", _table(("fact", "who", "told", "holds", "state", "from", "why"), rows), "history")
    if seen.evidence is None:
        behind = tag("p", "What it was taken from is purged.", class_="quiet")
    else:
        whole = _link(_path(space.key, "evidence", seen.evidence.name), f"All of {seen.evidence.name}")
        behind = f"{_origin(seen.evidence)}{_around(seen.evidence.text, fact.start, fact.stop)}<p>{whole}</p>"
    words = tag("p", visible(fact.text), class_="said")
    return (
        f"{_head(space, fact.name, said)}{_section('Fact', words + topic, 'fact')}"
        f"{_section('Evidence', behind, 'evidence')}{chain}"
    )


def _bonds(fact: Fact, links: Iterable[Link]) -> str:
    return "; ".join(
        f"{each.kind.value} f{each.other}" + (f" ({visible(each.reason)})" if each.reason else "")
        for each in links
        if each.fact == fact.id
    )


def _origin(evidence: Evidence) -> str:
    who = visible(evidence.speaker) or evidence.role.value
    where = f", from {visible(evidence.source)}" if evidence.source else ""
    return tag("p", f"Told by {who} ({evidence.role.value}){where}, {evidence.observed}:", class_="quiet")


def _around(text: str, start: int, stop: int) -> str:
    """The words around a fact, the fact marked."""
    first, last = max(0, start - 1000), min(len(text), stop + 1000)
    before, after = ("... " if first else ""), (" ..." if last < len(text) else "")
    marked = tag("mark", visible(text[start:stop]))
    return (
        f'<pre class="told" tabindex="0">{before}{esc(visible(text[first:start]))}{marked}'
        f"{esc(visible(text[stop:last]))}{after}</pre>"
    )


def _evidence(space: Space, evidence: Evidence, facts: Sequence[Fact], start: int) -> str:
    """What was told, each fact of it a link; in parts if it is long."""
    text, at, stop = evidence.text, start, min(len(evidence.text), start + _WINDOW)
    parts: list[str] = []
    for fact in facts:
        if fact.start < at or fact.stop > stop:
            continue
        href = _path(space.key, "facts", fact.name)
        parts.append(esc(visible(text[at : fact.start])))
        parts.append(tag("a", visible(text[fact.start : fact.stop]), href=href, class_=f"fact-{fact.state.value}"))
        at = fact.stop
    parts.append(esc(visible(text[at:stop])))
    here = _path(space.key, "evidence", evidence.name)
    more = [_link(f"{here}?start={max(0, start - _WINDOW)}", "Before")] if start else []
    more += [_link(f"{here}?start={stop}", "Go on")] if stop < len(text) else []
    said = f"{len(text):,} characters" + (f", from {start:,} to {stop:,}" if more else "")
    told = f'{_origin(evidence)}<pre class="told" tabindex="0">{"".join(parts)}</pre><p>{" ".join(more)}</p>'
    return f"{_head(space, evidence.name, said)}{_section('What was told', told, 'told')}"


def _changes(changes: Sequence[Change]) -> str:
    if not changes:
        return tag("p", "There is none.", class_="quiet")
    rows = "".join(
        f"<tr>{tag('th', f'c{each.id}', scope='row')}{tag('td', inside=day(each.at_s))}{tag('td', visible(each.kind))}"
        f"{tag('td', visible(each.by))}{tag('td', visible(each.outcome))}"
        f"{tag('td', visible(each.note), class_='said')}</tr>"
        for each in changes
    )
    return _table(("change", "when", "what", "by", "outcome", "note"), rows)


def _section(title: str, inside: str, name: str) -> str:
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{esc(title)}</h2>{inside}</section>'
    )


def _table(columns: Sequence[str], rows: str) -> str:
    head = "".join(tag("th", each, scope="col") for each in columns)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _link(href: str, words: str) -> str:
    return tag("a", words, href=href)


def _path(key: str, *rest: str) -> str:
    return "/".join(["/memory", *(quote(each, safe="") for each in (key, *rest))])


def _count(request: Request, name: str) -> int:
    word = request.query_params.get(name, "0")
    if not (word.isascii() and word.isdigit() and len(word) < 16):
        raise CallError(f"{name} must be a number", missing=name)
    return int(word)

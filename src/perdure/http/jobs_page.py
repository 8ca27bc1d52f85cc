"""The page of the supervisor: the list of jobs, and a job: attempts, ranks, nodes, what happened and what was done."""

from __future__ import annotations

import json
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.events.facts import seconds
from perdure.http.jobs import Jobs, Looked
from perdure.http.pages import Page, day, esc, respond, tag
from perdure.http.timeline import account_bar, timeline
from perdure.http.watch_page import section as watch_section
from perdure.http.watched import Watched
from perdure.supervisor.asking import Seen
from perdure.supervisor.goodput import Account
from perdure.supervisor.job import State
from perdure.supervisor.messages import NodeView, RankView, Told
from perdure.supervisor.plain import live_account, since

__all__ = ["PAGE"]

_MOST_RANKS: Final = 4096
_MOST_FACTS: Final = 200
_BAD: Final = ("rank-died", "node-lost", "rank-late", "node-cordoned", "job-failed")
_GOOD: Final = ("job-succeeded", "steps-began")
_QUIET_NODE_S: Final = 2.0


def _routes(jobs: Jobs) -> list[BaseRoute]:
    def all_jobs(request: Request) -> Response:
        return respond(request, list_of(jobs.look_at_all()), title="Jobs")

    def one(request: Request) -> Response:
        name = request.path_params["name"]
        return respond(request, body_of(jobs.look(name), watched=jobs.watches.find(name)), title=name)

    return [Route("/jobs", all_jobs), Route("/jobs/{name}", one)]


PAGE: Final = Page("Jobs", "/jobs", _routes)


def list_of(looked: list[Looked]) -> str:
    """The list of jobs; those that run come first."""
    found = sorted((each for each in looked if each.seen), key=lambda each: not (each.seen and each.seen.live))
    head = "".join(
        tag("th", name, scope="col") for name in ("job", "state", "attempt", "step", "goodput", "restarts", "since")
    )
    rows = "".join(_job_row(each.seen) for each in found if each.seen)
    unread = "".join(tag("p", f"{each.name}: {each.error}", class_="note bad") for each in looked if each.error)
    table = (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        if rows
        else tag("p", "There is no job yet. Start one with: perdure run --nproc 2 train.py", class_="quiet")
    )
    return f"<h1>Jobs</h1>{unread}{table}"


def _job_row(seen: Seen) -> str:
    job = seen.view.job
    _, account = live_account(seen.view)
    cells = (
        tag("th", inside=tag("a", job.name, href=f"/jobs/{job.name}"), scope="row"),
        tag("td", inside=_pill(seen)),
        tag("td", max(job.attempt, 0), class_="n"),
        tag("td", job.best_step, class_="n"),
        tag("td", _percent(account), class_="n"),
        tag("td", sum(account.restarts.values()), class_="n"),
        tag("td", inside=day(since(seen.view))),
    )
    return f"<tr>{''.join(cells)}</tr>"


def _pill(seen: Seen) -> str:
    state = seen.view.job.state
    lone = not seen.live and not state.final
    text = f"{state.value}, no controller" if lone else state.value
    return tag("span", text, class_=f"pill state-{'lone' if lone else state.value}")


def _percent(account: Account) -> str:
    return "unknown" if account.goodput is None else f"{account.goodput:.1%}"


def body_of(seen: Seen, *, watched: Watched | None = None) -> str:
    """All of one job; ``watched`` is what the watcher has kept of it."""
    spans, account = live_account(seen.view)
    parts = (
        _head(seen, account),
        _section("Timeline of attempts", timeline(spans), "timeline"),
        _section("Where the time went", account_bar(account), "account"),
        _section("Ranks", _grid(seen), "ranks"),
        _section("Watch", watch_section(watched), "watch") if watched is not None else "",
        _section("Nodes", _nodes(seen), "nodes"),
        _section("What happened, and what was done about it", _facts(seen.view.facts), "facts"),
    )
    return "".join(parts)


def _section(title: str, inside: str, name: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{inside}</section>'


def _head(seen: Seen, account: Account) -> str:
    view, job = seen.view, seen.view.job
    note = tag("p", seen.note, class_="note") if seen.note else ""
    mood = "note bad" if job.state is State.FAILED else "note"
    reason = tag("p", f"Last failure: {job.reason}", class_=mood) if job.reason else ""
    causes = ", ".join(f"{n} {cause}" for cause, n in account.restarts.items() if n)
    restarts = f"restarts: {causes}" if causes else "no restart"
    tiles = (
        ("Attempt", str(max(job.attempt, 0)), restarts),
        ("Step", str(job.best_step), f"{account.steps} new in this run"),
        ("Goodput", _percent(account), f"time with new steps, of {seconds(account.wall_s)}"),
        ("Nodes", str(len(job.places)), f"{view.spec.min_nodes} to {view.spec.max_nodes}, {view.spec.spares} spare"),
    )
    shown = "".join(
        f'<div class="tile"><dt>{title}</dt><dd>{esc(value)}<small>{esc(more)}</small></dd></div>'
        for title, value, more in tiles
    )
    stop = ""
    if seen.live and not job.state.final:
        ask = f"Stop job {job.name}? Its ranks save and end, and it is not started again."
        stop = _button("Stop job", "stop", f"/api/jobs/{job.name}/stop", {}, ask, danger=True)
    command = esc(" ".join(view.spec.command))
    return (
        f'<section id="head" aria-labelledby="job-title"><div class="title"><h1 id="job-title">{esc(job.name)}</h1>'
        f'{_pill(seen)}<span class="quiet">since {day(since(view))}</span>{stop}</div>{note}{reason}'
        f'<p class="command"><code>{command}</code></p><dl class="tiles">{shown}</dl></section>'
    )


def _button(text: str, name: str, url: str, body: dict[str, str], ask: str, *, danger: bool = False) -> str:
    return tag(
        "button",
        text,
        type="button",
        id=f"do-{name}",
        class_="danger" if danger else None,
        data_url=url,
        data_body=json.dumps(body),
        data_ask=ask,
    )


def _grid(seen: Seen) -> str:
    groups, n = [], 0
    for node in seen.view.nodes:
        if not node.ranks:
            continue
        cells = "".join(_cell(node, rank) for rank in node.ranks[: max(0, _MOST_RANKS - n)])
        n += len(node.ranks)
        name = esc(node.facts.name)
        groups.append(
            f'<div class="group"><h3>{name}</h3><ol class="cells" aria-label="ranks of {name}">{cells}</ol></div>'
        )
    if not groups:
        return tag("p", "No rank runs.", class_="quiet")
    more = tag("p", f"{n - _MOST_RANKS} ranks more are not drawn.", class_="quiet") if n > _MOST_RANKS else ""
    return f'<div class="grid">{"".join(groups)}</div>{more}'


def _cell(node: NodeView, rank: RankView) -> str:
    number = node.base + rank.local_rank
    phase = "ended" if rank.ended else rank.phase or "running"
    what = rank.ended or (f"{rank.phase} for {seconds(max(rank.phase_s, 0.0))}" if rank.phase else "no phase is told")
    title = f"rank {number} on {node.facts.name}: step {rank.step}, {what}, process {rank.pid}"
    return (
        f'<li class="cell phase-{phase}" tabindex="0" title="{esc(title)}" data-rank="{number}" data-pid="{rank.pid}">'
        f'<b>{number}</b><span>{rank.step}</span><span class="phase">{esc(phase)}</span></li>'
    )


def _nodes(seen: Seen) -> str:
    head = "".join(tag("th", name, scope="col") for name in ("node", "standing", "place", "ranks", "host", ""))
    rows = "".join(_node_row(seen, node) for node in seen.view.nodes)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _node_row(seen: Seen, node: NodeView) -> str:
    job, name = seen.view.job, node.facts.name
    action = ""
    if seen.live and not job.state.final:
        if node.standing in ("drained", "draining", "cordoned"):
            ask = f"Let node {name} be used again?"
            action = _button("Use again", f"uncordon-{name}", f"/api/jobs/{job.name}/uncordon", {"node": name}, ask)
        elif node.standing in ("runs", "spare"):
            ask = f"Drain node {name}? All ranks stop at a saved step, and go on without it."
            action = _button("Drain", f"drain-{name}", f"/api/jobs/{job.name}/drain", {"node": name}, ask)
    quiet = f", silent for {seconds(node.heard_s)}" if node.heard_s >= _QUIET_NODE_S else ""
    cordon = next((each for each in job.cordon.nodes if each.node == name and node.standing == "cordoned"), None)
    until = "" if cordon is None else tag("small", inside=f" until {day(cordon.until_s)}: {esc(cordon.reason)}")
    cells = (
        tag("th", name, scope="row"),
        tag("td", inside=f"{esc(node.standing)}{esc(quiet)}{until}", class_=f"standing standing-{node.standing}"),
        tag("td", "" if node.place is None else node.place, class_="n"),
        tag("td", node.facts.nproc, class_="n"),
        tag("td", node.facts.host),
        tag("td", inside=action, class_="act"),
    )
    return f'<tr id="node-{esc(name)}">{"".join(cells)}</tr>'


def _facts(facts: tuple[Told, ...]) -> str:
    if not facts:
        return tag("p", "Nothing yet.", class_="quiet")
    items = "".join(
        f'<li id="fact-{told.number}" class="{_mood(told.kind)}">{day(told.at)}<span>{esc(told.sentence)}</span></li>'
        for told in reversed(facts[-_MOST_FACTS:])
    )
    more = len(facts) - _MOST_FACTS
    left = tag("p", f"{more} earlier ones: perdure job events", class_="quiet") if more > 0 else ""
    return f'<ol class="facts" reversed tabindex="0" aria-labelledby="facts-title">{items}</ol>{left}'


def _mood(kind: str) -> str:
    return "bad" if kind in _BAD else "good" if kind in _GOOD else "plain"

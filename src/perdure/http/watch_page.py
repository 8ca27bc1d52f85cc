"""The page of the watcher: what is watched, and of each job its heat map, its incidents in time, and why."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.errors import PerdureError
from perdure.events.facts import seconds
from perdure.http.jobs import Jobs
from perdure.http.pages import Page, day, esc, respond, tag
from perdure.http.watched import Incident, Watched, wall_of
from perdure.watcher.evidence import Stage
from perdure.watcher.heat import Doing, HeatRecord
from perdure.watcher.labels import CLASSES, Action
from perdure.watcher.verdicts import kind_of

__all__ = ["PAGE", "incidents_of", "section"]

_WIDTH: Final = 1000.0
_LEAST: Final = 4.0
_MOST_LANES: Final = 60
_MOST_MARKS: Final = 40
_SLOW: Final = 1.05


def _routes(jobs: Jobs) -> list[BaseRoute]:
    def everything(request: Request) -> Response:
        return respond(request, _list(jobs.watches.all()), title="Watch")

    def one(request: Request) -> Response:
        watched = jobs.watches.get(request.path_params["name"])
        return respond(request, _body(watched), title=f"{watched.name}, watched")

    return [Route("/watch", everything), Route("/watch/{name}", one)]


PAGE: Final = Page("Watch", "/watch", _routes)


def _list(watches: Sequence[Watched]) -> str:
    if not watches:
        return "<h1>Watch</h1>" + tag(
            "p",
            "Nothing is watched yet. perdure watch --record DIR -- torchrun ... keeps what perdure console --watch DIR "
            "shows.",
            class_="quiet",
        )
    head = "".join(tag("th", name, scope="col") for name in ("job", "open", "what is wrong"))
    rows = "".join(_row(each) for each in watches)
    return f'<h1>Watch</h1><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(watched: Watched) -> str:
    try:
        still_open = [each for each in watched.incidents() if not each.over]
    except PerdureError as error:
        return f"<tr>{tag('th', watched.name, scope='row')}<td></td>{tag('td', error, class_='standing-lost')}</tr>"
    said = tag("td", still_open[-1].last.sentence) if still_open else tag("td", "nothing is wrong", class_="quiet")
    name = tag("a", watched.name, href=f"/watch/{watched.name}")
    return f"<tr>{tag('th', inside=name, scope='row')}{tag('td', len(still_open), class_='n')}{said}</tr>"


def section(watched: Watched) -> str:
    """What the page of a job says of the watch over it: what is open, and where more is."""
    still_open = [each for each in watched.incidents() if not each.over]
    said = "".join(f"<p>{_pill(each)} {esc(each.last.sentence)}</p>" for each in still_open[-4:])
    more = tag("a", "Heat map, incidents and why", href=f"/watch/{watched.name}")
    return (said or tag("p", "The watcher sees nothing wrong.", class_="quiet")) + f"<p>{more}</p>"


def _body(watched: Watched) -> str:
    incidents, heat = watched.incidents(), watched.heat()
    still_open = [each for each in incidents if not each.over]
    notes = "".join(
        f'<p class="note{" bad" if _grave(each) else ""}">{esc(each.last.sentence)}: '
        f"{esc(each.last.action.value)}, for {esc(each.last.owner.value)}</p>"
        for each in still_open[-4:]
    )
    head = (
        f'<section id="head" aria-labelledby="watch-title"><div class="title"><h1 id="watch-title">'
        f"{esc(watched.name)}, watched</h1></div>{notes}</section>"
    )
    now_at = time.time() if heat is None else max(heat.wall_s, *(each.began_at for each in incidents), 0.0)
    ranks = _section("Ranks over time", _map(watched, heat), "heat-map")
    worst = _section("Ranks that stand out now", _worst(heat), "worst") if heat is not None and heat.ranks else ""
    told = _section("Incidents", incidents_of(incidents, begin_at=_begin(incidents, heat), now_at=now_at), "incidents")
    return head + ranks + told + worst


def _section(title: str, inside: str, name: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{inside}</section>'


def _map(watched: Watched, heat: HeatRecord | None) -> str:
    if heat is None:
        return tag("p", "No heat map is kept here, only verdicts.", class_="quiet")
    measures = _choice(
        "measure", (("ratio", "own time, to peers"), ("doing", "what it does"), ("waits", "waiting share"))
    )
    spans = _choice("span", (("recent", "last 10 minutes"), ("whole", "whole run")))
    rows = {"rank": "ranks", "node": "nodes, each by its worst rank", "nodes": "groups of nodes, by their worst rank"}
    label = f"heat map of {len(heat.rows)} {rows[heat.rows_are]}; arrow keys move over it"
    return (
        f'<div class="chooser">{measures}{spans}</div>'
        f'<div id="heat" data-own data-url="/api/watch/{esc(watched.name)}/heat">'
        f'<canvas tabindex="0" role="img" aria-label="{esc(label)}" aria-describedby="heat-said"></canvas>'
        '<div class="ends" aria-hidden="true"><span></span><span></span></div>'
        '<p id="heat-said" role="status">Point at a cell, or use the arrow keys.</p><ul class="legend"></ul></div>'
    )


def _choice(name: str, choices: Sequence[tuple[str, str]]) -> str:
    radios = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"{" checked" if n == 0 else ""}>{esc(text)}</label>'
        for n, (value, text) in enumerate(choices)
    )
    return f'<fieldset id="choose-{name}" data-own><legend>{name}</legend>{radios}</fieldset>'


def _worst(heat: HeatRecord) -> str:
    head = "".join(
        tag("th", name, scope="col") for name in ("rank", "node", "does", "step", "own time, to peers", "waits")
    )
    rows = "".join(
        "<tr>"
        + tag("th", each.rank, scope="row", class_="n")
        + tag("td", each.node)
        + tag("td", each.doing.replace("_", " "))
        + tag("td", "" if each.step is None else each.step, class_="n")
        + tag("td", "" if each.ratio is None else f"{each.ratio:.2f}", class_="n")
        + tag("td", "" if each.waits is None else f"{each.waits:.0%}", class_="n")
        + "</tr>"
        for each in heat.worst
        if Doing.__members__.get(each.doing.upper(), Doing.UNKNOWN) >= Doing.IN_KERNEL or (each.ratio or 0.0) >= _SLOW
    )
    if not rows:
        return tag("p", "None does.", class_="quiet")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _begin(incidents: Sequence[Incident], heat: HeatRecord | None) -> float:
    begins = [each.began_at for each in incidents[-_MOST_LANES:]]
    if heat is not None:
        begins.append(heat.wall_s - (heat.now_s - heat.whole.first_s))
    return min(begins, default=0.0)


def incidents_of(incidents: Sequence[Incident], *, begin_at: float, now_at: float) -> str:
    """A lane for each of the last incidents, the newest first, on one axis of time; opened, it says why."""
    if not incidents:
        return tag("p", "There was none.", class_="quiet")
    shown = list(reversed(incidents[-_MOST_LANES:]))
    end_at = max([now_at, *(each.until_at or each.began_at for each in shown)])
    lanes = "".join(_lane(each, begin_at=begin_at, end_at=end_at) for each in shown)
    more = len(incidents) - len(shown)
    left = tag("p", f"{more} earlier ones are not drawn.", class_="quiet") if more else ""
    axis = (
        '<div class="lane axis" aria-hidden="true"><span></span><span class="ends">'
        f"<span>{day(begin_at)}</span><span>{seconds(end_at - begin_at)}</span><span>{day(end_at)}</span></span>"
        "<span></span></div>"
    )
    return f'<div class="incidents">{lanes}{axis}</div>{left}'


def _lane(incident: Incident, *, begin_at: float, end_at: float) -> str:
    last = incident.last
    until_at = end_at if incident.until_at is None else incident.until_at
    stage = incident.told[-1].stage.value
    took = seconds(max(until_at - incident.began_at, 0.0))
    label = f"{stage}, {took}: {last.sentence}"
    drawing = _bars(incident, begin_at=begin_at, end_at=end_at, until_at=until_at)
    facts = (
        f"{CLASSES[last.label].means} ({last.label.value})",
        f"to do: {last.action.value}",
        f"for: {last.owner.value}",
        f"sure: {last.confidence:.0%}",
        f"{stage}, {'until now' if not incident.over else 'over'}, {took}",
    )
    return (
        f'<details id="incident-{esc(incident.key)}" data-began="{incident.began_at:.3f}" data-until="{until_at:.3f}">'
        f'<summary class="lane">'
        f'<span class="lane-name">{esc(incident.key)} {esc(last.label.value)}</span>'
        f'<svg viewBox="0 0 {_WIDTH:g} 20" preserveAspectRatio="none" role="img" aria-label="{esc(label)}">{drawing}'
        f'</svg><span class="lane-took">{_pill(incident)}</span></summary>'
        f'<p>{day(incident.began_at)} {esc(last.sentence)}</p><p class="quiet">{esc("; ".join(facts))}</p>'
        f'<pre tabindex="0" aria-label="why">{esc(incident.explanation())}</pre></details>'
    )


def _bars(incident: Incident, *, begin_at: float, end_at: float, until_at: float) -> str:
    """What it was when, and a mark for each piece of evidence."""
    scale = _WIDTH / max(end_at - begin_at, 1e-9)

    def x(at: float) -> float:
        return min(max((at - begin_at) * scale, 0.0), _WIDTH - _LEAST)

    told = [(each.stage, wall_of(each)) for each in incident.told if each.stage is not Stage.CLEARED]
    ends = [*(at for _, at in told[1:]), until_at]
    bars = "".join(
        f'<rect class="stage-{stage.value}" x="{x(at):.2f}" y="5" width="{max((end - at) * scale, _LEAST):.2f}" '
        f'height="10"><title>{stage.value} for {seconds(max(end - at, 0.0))}</title></rect>'
        for (stage, at), end in zip(told, ends, strict=True)
    )
    marks = "".join(
        f'<rect class="mark" x="{x(at):.2f}" y="0" width="2" height="20"><title>{esc(kind_of(each))}: '
        f"{esc(each.sentence)}</title></rect>"
        for each, at in incident.evidence()[:_MOST_MARKS]
    )
    return bars + marks


def _grave(incident: Incident) -> bool:
    return incident.last.stage is Stage.VERDICT and incident.last.action is not Action.WARN


def _pill(incident: Incident) -> str:
    stage = incident.told[-1].stage.value
    return tag("span", stage, class_=f"pill pill-{stage}")

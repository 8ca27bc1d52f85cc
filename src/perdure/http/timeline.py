"""Where a job's time went, drawn: a lane for each attempt, and one bar for all of it. SVG of our own. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from perdure.events.facts import seconds
from perdure.http.pages import esc, tag
from perdure.supervisor.goodput import USES, Account, Span

__all__ = ["account_bar", "timeline"]

_WIDTH: Final = 1000.0
_LEAST: Final = 2.0
_MOST_LANES: Final = 16
_WHAT: Final = {
    "start": "nodes gather",
    "warm-up": "nodes are checked",
    "launch": "processes start, import, restore, do a step",
    "repeat": "steps are done again",
    "progress": "new steps",
    "stall": "no new step any more",
    "verify": "ranks are ended, the cause is found",
    "recover": "waiting for nodes, or backing off",
}


def timeline(spans: Sequence[Span]) -> str:
    """A lane for each of the last attempts, on one axis of time."""
    if not spans:
        return tag("p", "Nothing has happened yet.", class_="quiet")
    lanes: dict[int, list[Span]] = {}
    for span in spans:
        lanes.setdefault(max(span.attempt, 0), []).append(span)
    shown = sorted(lanes)[-_MOST_LANES:]
    begin, end = lanes[shown[0]][0].at, spans[-1].until
    rows = [_lane(attempt, lanes[attempt], begin=begin, end=end) for attempt in shown]
    earlier = len(lanes) - len(shown)
    more = tag("p", f"{earlier} earlier attempts are not drawn.", class_="quiet") if earlier else ""
    axis = (
        f'<div class="lane axis" aria-hidden="true"><span></span><span class="ends"><span>{_clock(begin)}</span>'
        f"<span>{seconds(end - begin)}</span><span>{_clock(end)}</span></span><span></span></div>"
    )
    return more + '<div class="lanes">' + "".join(rows) + axis + "</div>"


def _lane(attempt: int, spans: Sequence[Span], *, begin: float, end: float) -> str:
    took = spans[-1].until - spans[0].at
    parts = ", ".join(f"{span.use} {seconds(span.seconds)}" for span in spans)
    scale = _WIDTH / max(end - begin, 1e-9)
    rects = "".join(
        f'<rect class="use-{span.use}" x="{(span.at - begin) * scale:.2f}" y="0" '
        f'width="{max(span.seconds * scale, _LEAST):.2f}" height="20"><title>attempt {attempt}, {span.use}: '
        f"{esc(_WHAT[span.use])}, {seconds(span.seconds)} from {_clock(span.at)}</title></rect>"
        for span in spans
    )
    label = esc(f"attempt {attempt}: {parts}")
    return (
        f'<div class="lane"><span class="lane-name">attempt {attempt}</span>'
        f'<svg viewBox="0 0 {_WIDTH:g} 20" preserveAspectRatio="none" role="img" aria-label="{label}">{rects}</svg>'
        f'<span class="lane-took">{seconds(took)}</span></div>'
    )


def account_bar(account: Account) -> str:
    """All time of the run as one bar, with its legend, which says the same in words."""
    if account.wall_s <= 0:
        return ""
    at, rects, legend = 0.0, [], []
    for use in USES:
        value = account.seconds[use]
        if value <= 0:
            continue
        width = value / account.wall_s * _WIDTH
        text = f"{use}: {_WHAT[use]}, {seconds(value)}, {value / account.wall_s:.1%}"
        rects.append(
            f'<rect class="use-{use}" x="{at:.2f}" y="0" width="{width:.2f}" height="20"><title>{esc(text)}</title>'
            "</rect>"
        )
        at += width
        legend.append(
            f'<li title="{esc(_WHAT[use])}"><span class="key use-{use}" aria-hidden="true"></span>{use} '
            f"<b>{value / account.wall_s:.1%}</b> {seconds(value)}</li>"
        )
    return (
        f'<svg class="whole" viewBox="0 0 {_WIDTH:g} 20" preserveAspectRatio="none" role="img" '
        f'aria-label="What the time went into">{"".join(rects)}</svg><ul class="legend">{"".join(legend)}</ul>'
    )


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at))

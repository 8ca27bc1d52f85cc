"""Pages of the console: what a system gives to have one, and the frame around each. HTML is written by hand.

A page's path answers the whole page, and with ``?part`` only what is inside ``<main>``, which the page's own JavaScript
asks for every second.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from perdure.http.jobs import Jobs

__all__ = ["Page", "day", "esc", "frame", "respond", "tag"]


@dataclass(frozen=True, slots=True)
class Page:
    """What a system adds to the console: an entry of its menu, and routes below ``path``."""

    title: str
    path: str
    routes: Callable[[Jobs], list[BaseRoute]]


def esc(value: object) -> str:
    """``value`` as text that HTML leaves alone.

    >>> esc("<b>")
    '&lt;b&gt;'
    """
    return html.escape(str(value))


def tag(name: str, text: object = "", /, *, inside: str = "", **attributes: object) -> str:
    """An element: ``text`` is escaped, ``inside`` is HTML already. ``class_`` is class, ``data_x`` is data-x.

    >>> tag("td", "a & b", class_="n")
    '<td class="n">a &amp; b</td>'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{esc(value)}"' for key, value in attributes.items() if value is not None
    )
    return f"<{name}{words}>{esc(text)}{inside}</{name}>"


def day(at: float) -> str:
    """A moment, as an element that JavaScript turns into the reader's own time."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
    return tag("time", f"{shown} UTC", datetime=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)))


def frame(main: str, *, title: str, pages: Sequence[Page], here: str, live: bool = True) -> str:
    """The whole page around ``main``."""
    menu = "".join(
        tag("a", page.title, href=page.path, aria_current="page" if here.startswith(page.path) else None)
        for page in pages
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{esc(title)} - perdure</title>"
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="/static/console.css"><script src="/static/console.js" defer></script>'
        '<script src="/static/watch.js" defer></script></head>'
        '<body><a class="skip" href="#main">Skip to the content</a>'
        f'<header class="bar"><span class="brand">perdure</span><nav aria-label="Pages">{menu}</nav>'
        '<span id="fresh" role="status"></span></header>'
        f'<main id="main" tabindex="-1"{" data-live" if live else ""}>{main}</main>'
        '<dialog id="ask" aria-labelledby="ask-title"><form method="dialog"><h2 id="ask-title">Sure?</h2>'
        '<p id="ask-text"></p><div class="row"><button value="no" autofocus>No, go back</button>'
        '<button value="yes" class="danger" id="ask-yes">Yes</button></div></form></dialog>'
        '<div id="said" role="status" aria-live="polite"></div>'
        '<noscript><p class="note">Without JavaScript this page shows the moment at which it was loaded, and its '
        "buttons do nothing: use perdure job.</p></noscript></body></html>"
    )


def respond(request: Request, main: str, *, title: str, live: bool = True) -> Response:
    """The page, or what is inside its frame if that is asked for; ``live`` pages ask for that every second."""
    if "part" in request.query_params:
        return HTMLResponse(main)
    return HTMLResponse(frame(main, title=title, pages=request.app.state.pages, here=request.url.path, live=live))

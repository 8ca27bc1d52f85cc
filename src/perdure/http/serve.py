"""The console: its routes put together, and served."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError, PerdureError
from perdure.http import jobs_page, memory_page, watch_page
from perdure.http.access import Access, Keeper, kept_token, port_of
from perdure.http.api import answer, api_routes, error_answer, status_of
from perdure.http.jobs import Jobs
from perdure.http.memory_api import memory_routes
from perdure.http.metrics import CONTENT_TYPE, metrics_of
from perdure.http.pages import Page, esc, frame, respond, tag
from perdure.http.watch_api import watch_routes
from perdure.supervisor.asking import Asker

__all__ = ["PAGES", "console", "is_loopback", "kept_token", "serve"]

PAGES: Final[tuple[Page, ...]] = (jobs_page.PAGE, watch_page.PAGE, memory_page.PAGE)
"""The pages of the console, as its menu has them: each system adds one."""

_STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "watch.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_MOST_LOGIN_BYTES: Final = 4096


def console(
    askers: Callable[[], Iterable[Asker]],
    *,
    token: str,
    records: Callable[[], Mapping[str, Path]] = dict,
    memory: Path | None = None,
    pages: tuple[Page, ...] = PAGES,
    clock: Clock = SYSTEM,
) -> Starlette:
    """The console as an ASGI application; ``askers`` tells which jobs there are, ``records`` what is kept of a watch,
    by name, ``memory`` is a folder of memories, ``token`` lets in.
    """
    jobs, access = Jobs(askers, records, memory), Access(token)

    def home(request: Request) -> Response:
        return RedirectResponse(pages[0].path, status_code=303)

    def metrics(request: Request) -> Response:
        text = metrics_of(jobs.look_at_all(), now_at=clock.wall()) + jobs.watches.metrics(clock.wall())
        return Response(text, headers={"content-type": CONTENT_TYPE})

    routes: list[BaseRoute] = [
        Route("/", home),
        Route("/login", _login(access), methods=["GET", "POST"]),
        Route("/static/{name}", _static),
        Route("/metrics", metrics),
        *watch_routes(jobs.watches),
        *memory_routes(jobs.memories),
        *api_routes(jobs),
        *(route for page in pages for route in page.routes(jobs)),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Keeper, access=access)],
        exception_handlers={PerdureError: _perdure_error, HTTPException: _http_error},
    )
    app.state.pages = pages
    return app


def _login(access: Access) -> Callable[[Request], object]:
    async def login(request: Request) -> Response:
        if request.method != "POST":
            return HTMLResponse(_login_page(""))
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MOST_LOGIN_BYTES:
                return HTMLResponse(_login_page("That is too long for a token."), status_code=413)
        shown = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
        if not access.knows(shown):
            return HTMLResponse(_login_page("That is not the console's token."), status_code=401)
        done = RedirectResponse("/", status_code=303)
        name, value = access.cookie_for(port_of(request.scope))
        done.set_cookie(name, value, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/")
        return done

    return login


def _login_page(wrong: str) -> str:
    return frame(
        '<section class="login"><h1>perdure console</h1>'
        + (tag("p", wrong, class_="note bad", role="alert") if wrong else "")
        + '<form method="post" action="/login" id="login"><label for="token">Token</label>'
        '<input id="token" name="token" type="password" autocomplete="current-password" required>'
        '<button>Log in</button></form><p class="quiet">perdure console prints an address that has it, and keeps it in '
        "console.token beside the jobs.</p></section>",
        title="Log in",
        pages=(),
        here="/login",
        live=False,
    )


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404, f"there is no {name}")
    data = resources.files("perdure.http").joinpath("static", name).read_bytes()
    return Response(data, headers={"content-type": _STATIC[name]})


def _perdure_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PerdureError)
    if request.url.path.startswith("/api/"):
        return error_answer(error)
    return _sorry(request, str(error), status_of(error))


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.url.path.startswith("/api/"):
        return answer({"error": {"kind": "http", "message": error.detail}}, status=error.status_code)
    return _sorry(request, error.detail, error.status_code)


def _sorry(request: Request, sentence: str, status: int) -> Response:
    page = respond(request, f'<h1>{status}</h1><p class="note bad">{esc(sentence)}</p>', title=str(status))
    page.status_code = status
    return page


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CallError(f"cannot listen at {host}: {error.strerror}") from error
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)


def serve(
    askers: Callable[[], Iterable[Asker]],
    *,
    token: str,
    host: str,
    port: int,
    records: Callable[[], Mapping[str, Path]] = dict,
    memory: Path | None = None,
) -> int:
    """Serve the console at ``host`` and ``port`` (0: a free one), and print where, until SIGINT or SIGTERM."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise CallError(f"cannot listen at {host}:{port}: {error.strerror}; give another --port") from error
    shown = f"[{host}]" if ":" in host else host
    print(f"console: http://{shown}:{sock.getsockname()[1]}/login#token={token}", flush=True)
    config = uvicorn.Config(
        console(askers, token=token, records=records, memory=memory),
        log_level="warning",
        access_log=False,
        lifespan="off",
    )
    uvicorn.Server(config).run(sockets=[sock])
    return 0

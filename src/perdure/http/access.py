"""Who may use the console: whoever shows its token, in a header, or by a cookie that was got for it.

The token is a secret of the console's own. A request shows it as ``Authorization: Bearer TOKEN``. A browser logs in
with it once, by the address that `perdure console` prints: the token is in the fragment, which browsers send nowhere;
the page posts it and gets a cookie. The cookie alone can read. To change something a request needs a header that no
page of another site can make a browser send: ``Authorization``, or ``X-Perdure-Console`` beside the cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.errors import StorageError

__all__ = ["OPEN_PATHS", "Access", "Keeper", "kept_token"]

OPEN_PATHS: Final = ("/login", "/static/")
_READS: Final = ("GET", "HEAD")
_SECURITY: Final = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}


class Access:
    """The rule. ``token`` is the console's."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._cookie = hmac.digest(self._token, b"perdure console cookie", "sha256").hex()

    def knows(self, token: str) -> bool:
        """Whether ``token`` is the console's; takes as long whatever it is."""
        ours = hashlib.sha256(self._token).digest()
        return hmac.compare_digest(hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), ours)

    def cookie_for(self, port: int) -> tuple[str, str]:
        """Name and value of the cookie: cookies are of a host, consoles of a port."""
        return f"perdure_console_{port}", self._cookie

    def refusal(self, request: HTTPConnection) -> str:
        """Why ``request`` may not; empty if it may."""
        kind, _, shown = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return "" if self.knows(shown.strip()) else "that is not the console's token"
        if not self._has_cookie(request):
            return "show the console's token: Authorization: Bearer TOKEN"
        if request.scope["method"] in _READS or request.headers.get("x-perdure-console"):
            return ""
        return "to change something, show the token in a header: Authorization: Bearer TOKEN"

    def _has_cookie(self, request: HTTPConnection) -> bool:
        name, value = self.cookie_for(port_of(request.scope))
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(name)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), value.encode())


def port_of(scope: Scope) -> int:
    """The port at which the console listens."""
    server: Any = scope.get("server")
    return 0 if server is None or server[1] is None else int(server[1])


class Keeper:
    """Lets requests through that may, and sends the others to the login, or away."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_SECURITY.items()]
            await send(message)

        path = str(scope["path"])
        why = "" if path.startswith(OPEN_PATHS) else self._access.refusal(HTTPConnection(scope))
        if not why:
            return await self._app(scope, receive, guarded)
        service = path.startswith(("/api/", "/metrics"))
        answer: Response
        if service or scope["method"] not in _READS:
            headers = {"www-authenticate": "Bearer"}
            answer = JSONResponse({"error": {"kind": "access", "message": why}}, status_code=401, headers=headers)
        else:
            answer = RedirectResponse("/login", status_code=303)
        return await answer(scope, receive, guarded)


def kept_token(path: Path) -> str:
    """The token in the file ``path``, made at the first call, for its owner alone.

    Raises `StorageError` if the file cannot be read or made, or is open to others.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(fd, "w") as file:
                file.write(os.urandom(32).hex())
            try:
                os.link(fresh, path)
            except FileExistsError:
                pass  # another console was faster: there is one token
            os.unlink(fresh)
        facts = os.lstat(path)
        if facts.st_mode & 0o077 or facts.st_uid != os.geteuid():
            raise StorageError(f"{path} must be yours and closed to others; run: chmod 600 {path}", file=str(path))
        return path.read_text().strip()
    except OSError as error:
        raise StorageError(f"cannot keep the console's token in {path}: {error.strerror}", file=str(path)) from error

"""Talking HTTP to what an operator has named: http and https only, and no redirects, which could lead anywhere."""

from __future__ import annotations

import urllib.request
from http.client import HTTPMessage
from typing import IO
from urllib.parse import urlsplit

from perdure.errors import CallError

__all__ = ["opener", "whole_url"]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as the answer, which then is an error that says where it points."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def opener() -> urllib.request.OpenerDirector:
    """Opens http and https URLs, through the proxies that the environment names. Each call makes its own."""
    director = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _NoRedirects(),
    ):
        director.add_handler(handler)
    return director


def whole_url(url: str) -> str:
    """Return ``url``; raise `CallError` unless it is http or https with a host, and without control characters."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine or any(ord(c) <= 32 or ord(c) == 127 for c in url):
        raise CallError("a URL must be http://host... or https://host..., without spaces")
    return url

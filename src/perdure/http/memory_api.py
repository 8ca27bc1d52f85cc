"""The JSON API over memories, read-only.

| request | answer |
|---|---|
| ``GET /api/memory`` | ``{"memories": [{"key": ..., "name": ...}]}`` |
| ``GET /api/memory/KEY/search?q=...&limit=N&history=1`` | ``{"facts": [...]}``, the best first |
| ``GET /api/memory/KEY/topics?after=N`` | ``{"topics": [...], "count": N}`` |
| ``GET /api/memory/KEY/topics/ID`` | the topic with ``current``, ``conflicts`` and ``past`` facts |
| ``GET /api/memory/KEY/facts/ID`` | the fact with its ``evidence``, and the ``facts`` and ``links`` of its history |
| ``GET /api/memory/KEY/evidence/ID`` | what was told, and its ``facts`` |
| ``GET /api/memory/KEY/changes?before=N`` | ``{"changes": [...]}``, the newest first |

Records are as `perdure.memory.plain` writes them. Errors are as in `perdure.http.api`.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.errors import CallError
from perdure.http.api import answer
from perdure.http.memories import Memories, Space
from perdure.memory.plain import plain

__all__ = ["memory_routes"]

_MOST: Final = 200


def memory_routes(memories: Memories) -> list[BaseRoute]:
    """The routes."""

    def space(request: Request) -> Space:
        return memories.get(request.path_params["space"])

    def everything(request: Request) -> Response:
        return answer({"memories": [{"key": key, "name": plain(name)} for key, name in memories.names().items()]})

    def search(request: Request) -> Response:
        question = request.query_params.get("q", "")[:4000]
        history = request.query_params.get("history") == "1"
        limit = min(max(_number(request, "limit", 10), 1), _MOST)
        return answer({"facts": plain(space(request).memory.search(question, limit=limit, history=history))})

    def topics(request: Request) -> Response:
        found, count = space(request).topics(after=_number(request, "after", 0))
        return answer({"topics": plain(found), "count": count})

    def topic(request: Request) -> Response:
        return answer(plain(space(request).topic(request.path_params["name"])))

    def fact(request: Request) -> Response:
        return answer(plain(space(request).fact(request.path_params["name"])))

    def evidence(request: Request) -> Response:
        found, facts = space(request).evidence(request.path_params["name"])
        return answer(plain(found) | {"facts": plain(facts)})

    def changes(request: Request) -> Response:
        before = _number(request, "before", 0) or None
        return answer({"changes": plain(space(request).changes(before=before))})

    return [
        Route("/api/memory", everything),
        Route("/api/memory/{space}/search", search),
        Route("/api/memory/{space}/topics", topics),
        Route("/api/memory/{space}/topics/{name}", topic),
        Route("/api/memory/{space}/facts/{name}", fact),
        Route("/api/memory/{space}/evidence/{name}", evidence),
        Route("/api/memory/{space}/changes", changes),
    ]


def _number(request: Request, name: str, usual: int) -> int:
    word = request.query_params.get(name, str(usual))
    if not (word.isascii() and word.isdigit() and len(word) < 16):
        raise CallError(f"{name} must be a number", missing=name)
    return int(word)

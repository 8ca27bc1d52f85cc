"""The JSON API over what watchers have kept.

| request | answer |
|---|---|
| ``GET /api/watch`` | ``{"watched": [...]}``: each with its open incidents |
| ``GET /api/watch/NAME`` | ``{"incidents": [...]}``, the oldest first |
| ``GET /api/watch/NAME/incidents/ID`` | the incident, with its ``explanation`` as text |
| ``GET /api/watch/NAME/heat?since=STAMP`` | ``{"stamp": ..., "record": ...}``; 204 if nothing is new |

The record is a `perdure.watcher.heat.HeatRecord`. Errors are as in `perdure.http.api`.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.errors import CallError
from perdure.http.api import answer
from perdure.http.watched import Watches

__all__ = ["watch_routes"]


def watch_routes(watches: Watches) -> list[BaseRoute]:
    """The routes."""

    def everything(request: Request) -> Response:
        found = [
            {
                "name": each.name,
                "heat": bool(each.heat_stamp()),
                "open": [one.plain() for one in each.incidents() if not one.over],
            }
            for each in watches.all()
        ]
        return answer({"watched": found})

    def one(request: Request) -> Response:
        watched = watches.get(request.path_params["name"])
        return answer({"name": watched.name, "incidents": [each.plain() for each in watched.incidents()]})

    def incident(request: Request) -> Response:
        found = watches.get(request.path_params["name"]).incident(request.path_params["key"])
        return answer(found.plain() | {"explanation": found.explanation()})

    def heat(request: Request) -> Response:
        watched = watches.get(request.path_params["name"])
        stamp = watched.heat_stamp()
        if stamp and stamp == request.query_params.get("since"):
            return Response(status_code=204)
        record = watched.heat()
        if record is None:
            raise CallError(f"no heat map is kept of {watched.name}", missing="heat")
        return answer({"stamp": stamp, "record": record})

    return [
        Route("/api/watch", everything),
        Route("/api/watch/{name}", one),
        Route("/api/watch/{name}/heat", heat),
        Route("/api/watch/{name}/incidents/{key}", incident),
    ]

"""The JSON API over jobs: what ``perdure job --json`` prints, and its orders.

| request | answer |
|---|---|
| ``GET /api/jobs`` | ``{"jobs": [...]}``, each in short |
| ``GET /api/jobs/NAME`` | the job with nodes, ranks, ``account`` and ``spans`` |
| ``GET /api/jobs/NAME/events?since=N`` | ``{"events": [...]}`` after number N |
| ``POST /api/jobs/NAME/drain`` ``{"node": "n1"}`` | ``{"done": true}``; 409 if it is refused |
| ``POST /api/jobs/NAME/uncordon`` ``{"node": "n1"}`` | the same |
| ``POST /api/jobs/NAME/stop`` | the same |

An error is ``{"error": {"kind": ..., "message": ...}}``: 400 for a body that cannot be read, 401 without the token, 404
for what there is not, 409 for what the job refuses, 503 if its controller cannot be reached.
"""

from __future__ import annotations

import signal
from typing import Any, Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.errors import CallError, PerdureError, TryAgain
from perdure.http.jobs import Jobs
from perdure.supervisor.asking import Seen
from perdure.supervisor.plain import live_account, plain, plain_account, plain_fact, since
from perdure.supervisor.vocabulary import Asked, Drain, Uncordon

__all__ = ["answer", "api_routes", "error_answer", "status_of"]

_BY: Final = "the console"
_MOST_BODY: Final = 65_536


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    node: str


def answer(value: Any, *, status: int = 200) -> Response:
    """``value`` as JSON."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def status_of(error: PerdureError) -> int:
    """The HTTP status that says what the caller does next."""
    if isinstance(error, CallError):
        return 404 if "missing" in error.facts else 409
    return 503 if isinstance(error, TryAgain) else 500


def error_answer(error: PerdureError) -> Response:
    """``error`` as JSON."""
    return answer({"error": {"kind": error.kind, "message": str(error)}}, status=status_of(error))


def short(seen: Seen) -> dict[str, Any]:
    """A job in a list."""
    _, account = live_account(seen.view)
    whole = plain(seen)
    nodes = [node for node in whole["nodes"] if node["place"] is not None]
    keys = ("job", "run", "state", "live", "note", "attempt", "step", "reason", "exit_code", "began_at")
    return {key: whole[key] for key in keys} | {
        "since": since(seen.view),
        "nodes": len(nodes),
        "ranks": sum(node["nproc"] for node in nodes),
        "goodput": account.goodput,
        "restarts": sum(account.restarts.values()),
    }


def api_routes(jobs: Jobs) -> list[BaseRoute]:
    """The routes."""

    def list_jobs(request: Request) -> Response:
        looked = jobs.look_at_all()
        unread = [{"job": each.name, "message": str(each.error)} for each in looked if each.error is not None]
        return answer({"jobs": [short(each.seen) for each in looked if each.seen is not None], "unread": unread})

    def one_job(request: Request) -> Response:
        seen = jobs.look(request.path_params["name"])
        spans, account = live_account(seen.view)
        return answer(plain(seen) | {"account": plain_account(account), "spans": spans})

    def events(request: Request) -> Response:
        try:
            after = int(request.query_params.get("since", "0"))
        except ValueError:
            raise HTTPException(400, "since must be a number") from None
        facts = jobs.look(request.path_params["name"]).view.facts
        return answer({"events": [plain_fact(told) for told in facts if told.number > after]})

    async def order(request: Request) -> Response:
        name, what = request.path_params["name"], request.path_params["what"]
        message: Asked | Drain | Uncordon
        if what not in ("drain", "uncordon", "stop"):
            raise HTTPException(404, f"there is no order {what}; there are drain, uncordon, stop")
        if what == "stop":
            message = Asked(signal.SIGTERM, by=_BY)
        else:
            node = await _node_in(request)
            message = Drain(node, by=_BY) if what == "drain" else Uncordon(node)
        await run_in_threadpool(lambda: jobs.asker(name).order(message))
        return answer({"done": True})

    return [
        Route("/api/jobs", list_jobs),
        Route("/api/jobs/{name}", one_job),
        Route("/api/jobs/{name}/events", events),
        Route("/api/jobs/{name}/{what}", order, methods=["POST"]),
    ]


async def _node_in(request: Request) -> str:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY:
            raise HTTPException(413, f"a body has at most {_MOST_BODY} bytes")
    try:
        return msgspec.json.decode(bytes(body), type=_Node).node
    except msgspec.MsgspecError as error:
        raise HTTPException(400, f'the body names a node, {{"node": "NAME"}}; this one does not: {error}') from None

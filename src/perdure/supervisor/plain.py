"""What tools print and services answer about a job: plain JSON values, one shape for ``--json`` and the API. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.supervisor.asking import Seen
from perdure.supervisor.goodput import Account, Span, account_of, spans_of
from perdure.supervisor.messages import Moment, NodeView, Told, View

__all__ = ["live_account", "plain", "plain_account", "plain_fact", "since"]


def since(view: View) -> float:
    """When the job came into the state that it is in (seconds since 1970); ``view`` has its moments."""
    at = view.now_at
    for moment in reversed(view.moments):
        if moment.state is not view.job.state:
            break
        at = moment.at
    return at


def live_account(view: View) -> tuple[tuple[Span, ...], Account]:
    """What the time of the run went into up to now; ``view`` has its moments."""
    now = Moment(at=view.now_at, state=view.job.state, attempt=view.job.attempt, step=view.job.best_step)
    same = view.moments and (view.moments[-1].state, view.moments[-1].attempt) == (now.state, now.attempt)
    moments = (*view.moments, now) if same and not now.state.final else view.moments
    return spans_of(moments, view.facts, now_at=view.now_at), account_of(moments, view.facts, now_at=view.now_at)


def plain(seen: Seen) -> dict[str, Any]:
    """A job as JSON values: what ``perdure job show --json`` prints and the API answers."""
    view = seen.view
    job, spec = view.job, view.spec
    return {
        "job": job.name,
        "run": job.run,
        "state": job.state.value,
        "live": seen.live,
        "note": seen.note,
        "attempt": job.attempt,
        "step": job.best_step,
        "reason": job.reason,
        "exit_code": job.exit_code,
        "began_at": view.began_at,
        "now_at": view.now_at,
        "controller": list(view.address) if seen.live else None,
        "command": list(spec.command),
        "min_nodes": spec.min_nodes,
        "max_nodes": spec.max_nodes,
        "spares": spec.spares,
        "log_dir": spec.log_dir,
        "nodes": [_plain_node(node) for node in view.nodes],
    }


def _plain_node(node: NodeView) -> dict[str, Any]:
    ranks = [{"rank": node.base + rank.local_rank, **msgspec.to_builtins(rank)} for rank in node.ranks]
    return {
        "node": node.facts.name,
        "host": node.facts.host,
        "place": node.place,
        "nproc": node.facts.nproc,
        "standing": node.standing,
        "heard_s": round(node.heard_s, 3),
        "standby": node.standby,
        "ranks": ranks,
    }


def plain_fact(told: Told) -> dict[str, Any]:
    """A fact as JSON values."""
    return {
        "number": told.number,
        "at": told.at,
        "kind": told.kind,
        "sentence": told.sentence,
        "fields": msgspec.json.decode(told.fields),
    }


def plain_account(account: Account) -> dict[str, Any]:
    """Where the time of a run went, as JSON values."""
    return {
        "wall_s": round(account.wall_s, 3),
        "goodput": None if account.goodput is None else round(account.goodput, 6),
        "seconds": {use: round(value, 3) for use, value in account.seconds.items()},
        "restarts": account.restarts,
        "steps": account.steps,
    }

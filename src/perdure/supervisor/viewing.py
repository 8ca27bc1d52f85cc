"""What a person is shown of a job: the machine's state and the launchers' reports as one plain value. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.supervisor.config import Spec
from perdure.supervisor.job import NodeFacts
from perdure.supervisor.machine import Machine
from perdure.supervisor.messages import NodeView, Report, Told, View

__all__ = ["view_of"]


def view_of(
    machine: Machine,
    spec: Spec,
    *,
    reports: Mapping[str, tuple[Report, float]],
    facts: tuple[Told, ...],
    began_at: float,
    now_at: float,
    address: tuple[str, int],
    moments: tuple[Moment, ...] = (),
) -> View:
    """Return the job as it is; ``reports`` maps a connected node to what it said last, and how many seconds ago."""
    here, job = machine.here(), machine.job
    names = [node.name for node in job.places]
    nodes, base = [], 0
    for place, node in enumerate(job.places):
        nodes.append(_node(machine, here.get(node.name, node), place, base, reports, now_at))
        base += node.nproc
    nodes += [_node(machine, here[name], None, 0, reports, now_at) for name in here if name not in names]
    return View(
        job=job,
        spec=spec,
        nodes=tuple(nodes),
        facts=facts,
        began_at=began_at,
        now_at=now_at,
        address=address,
        moments=moments,
    )


def kept_view(kept: Kept, facts: tuple[Told, ...], moments: tuple[Moment, ...], *, until: float) -> View:
    """Return a job without a controller, as its journal had it at ``until``: nobody knows what its nodes do now."""
    nodes, base = [], 0
    for place, node in enumerate(kept.job.places):
        nodes.append(NodeView(facts=node, place=place, base=base, standing="unknown", heard_s=-1.0))
        base += node.nproc
    return View(
        job=kept.job,
        spec=kept.spec,
        nodes=tuple(nodes),
        facts=facts,
        began_at=kept.began_at,
        now_at=until,
        moments=moments,
    )


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


def _node(
    machine: Machine,
    node: NodeFacts,
    place: int | None,
    base: int,
    reports: Mapping[str, tuple[Report, float]],
    now_at: float,
) -> NodeView:
    report, heard_s = reports.get(node.name, (Report(), -1.0))
    current = report.attempt == machine.job.attempt
    return NodeView(
        facts=node,
        place=place,
        base=base,
        standing=_standing(machine, node.name, place, now_at),
        heard_s=heard_s,
        ranks=report.ranks if current else (),
        standby=report.standby,
    )


def _standing(machine: Machine, name: str, place: int | None, now_at: float) -> str:
    job = machine.job
    if job.cordon.is_cordoned(name, now=now_at):
        return "cordoned"
    if name in job.draining:
        return "draining" if place is not None and not job.state.final else "drained"
    if name not in machine.here():
        return "lost"
    return "spare" if place is None else "runs"

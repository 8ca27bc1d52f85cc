"""What a person is shown of a job: the machine's state and the launchers' reports as one plain value. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.supervisor.config import Spec
from perdure.supervisor.job import NodeFacts
from perdure.supervisor.journal import Kept
from perdure.supervisor.machine import Machine
from perdure.supervisor.messages import Moment, NodeView, Report, Told, View

__all__ = ["kept_view", "view_of"]


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
    standing = "released" if kept.job.state.final else "unknown"
    nodes, base = [], 0
    for place, node in enumerate(kept.job.places):
        nodes.append(NodeView(facts=node, place=place, base=base, standing=standing, heard_s=-1.0))
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

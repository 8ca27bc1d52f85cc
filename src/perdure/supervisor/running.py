"""Which run of a job a controller that starts now belongs to: the one that was left off, or a new one."""

from __future__ import annotations

import uuid

import msgspec

from perdure.process.handle import is_running
from perdure.supervisor.config import Spec
from perdure.supervisor.folder import boot_id
from perdure.supervisor.job import Job, State
from perdure.supervisor.journal import Journal

__all__ = ["next_job"]


def next_job(journal: Journal, spec: Spec, *, wall: float) -> tuple[Job, bool] | None:
    """Return the job to go on with, and whether another controller has left it; None if this start of it is over.

    A run that was not over goes on, with the next term: its controller died, or its machine did. Its restart budget
    and what is known of its nodes go on with it. A run that is over stays so: a new one begins.
    """
    kept = journal.newest()
    if kept is not None and not kept.job.state.final:
        job = msgspec.structs.replace(kept.job, term=kept.job.term + 1)
        gone = all(node.machine == boot_id() and not is_running(node.pid) for node in job.places)
        if gone and _shape(kept.spec) != _shape(spec):  # nothing of it can still run, and other places are asked for
            job = msgspec.structs.replace(
                job, state=State.START, places=(), roster=(), ending=None, lost=(), draining=()
            )
        journal.begin(job.run, spec, at=wall)
        return job, True
    if kept is not None and spec.start and kept.spec.start == spec.start:
        return None  # one of several controllers that launchers had started, and the last to get to it
    run = uuid.uuid4().hex[:12]
    journal.begin(run, spec, at=wall)
    cordon = Job(name=spec.name, run=run) if kept is None else Job(name=spec.name, run=run, cordon=kept.job.cordon)
    return cordon, False


def _shape(spec: Spec) -> tuple[object, ...]:
    return (spec.min_nodes, spec.max_nodes, spec.spares, spec.command)

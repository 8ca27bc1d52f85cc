"""A console over a job that is over: its journal is written by hand, so nothing has to run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.events import AttemptStarted, JobSucceeded, NodeLost, StepsBegan
from perdure.supervisor import JobFolder, NodeFacts, Spec
from perdure.supervisor.job import Job, State
from perdure.supervisor.journal import Journal

Keep = Callable[..., JobFolder]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Write the journal of a job of two attempts that ended ``ago_s`` seconds ago."""

    def write(name: str = "old", *, ago_s: float = 10.0, command: str = "train", node: str = "a") -> JobFolder:
        folder = JobFolder(tmp_path / "state", name)
        folder.make()
        journal = Journal(folder.journal)
        end = time.time() - ago_s
        run, places = f"run-{name}", (NodeFacts(name=node, host="10.0.0.1", nproc=2),)

        def at(before_s: float, state: State, attempt: int, step: int, *facts: object, code: int | None = None) -> None:
            job = Job(name=name, run=run, state=state, attempt=attempt, best_step=step, places=places, exit_code=code)
            journal.write(job, facts, run=run, at=end - before_s)  # type: ignore[arg-type]

        journal.begin(run, Spec(name=name, command=(command,)), at=end - 100)
        at(100, State.START, -1, 0)
        at(90, State.EXECUTE, 0, 0, AttemptStarted(attempt=0, world=2))
        at(80, State.EXECUTE, 0, 1, StepsBegan(attempt=0, step=1))
        at(50, State.VERIFY, 0, 30, NodeLost(node=node, ranks=2))
        at(45, State.EXECUTE, 1, 30, AttemptStarted(attempt=1, world=2))
        at(40, State.EXECUTE, 1, 31, StepsBegan(attempt=1, step=31, before=30))
        at(1, State.VERIFY, 1, 60)
        at(0, State.SUCCEEDED, 1, 60, JobSucceeded(attempts=2, seconds=100), code=0)
        journal.close()
        return folder

    return write

"""One job through a storm, compared with the same training without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from storm import Storm
from storm_job import HERE, SRC, Job
from storm_lives import Life, all_steps, overlaps, read_lives, repeated_steps, step_s, wrong_steps

__all__ = ["Part", "play"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one job was, what struck it, and what came of it. ``lost``, ``orphans`` and ``wrong`` are to be empty."""

    seed: int
    shape: str
    n_nodes: int
    nproc: int
    spares: int
    steps: int
    faults: list[tuple[float, str, str]]
    "When (seconds after the first step), what, whom."
    attempts: int
    repeated: int
    "Steps that were done again, because the state after them was lost."
    step_s: float
    "Of a step while nothing was wrong: the median."
    trained_s: float
    "From the first step to the last."
    lost: list[str]
    orphans: list[str]
    wrong: list[str]
    load: float
    "Average of one minute, at the end."

    @property
    def goodput(self) -> float:
        """The steps that count, at the pace while nothing was wrong, by the time that they took."""
        return (self.steps - 1) * self.step_s / self.trained_s

    @property
    def well(self) -> bool:
        return not (self.lost or self.orphans or self.wrong)


def play(job: Job, *, seed: int, storm: Callable[[Job], Storm], within_s: float, references: Path) -> Part:
    """Train under ``storm``; say what differs from the same training without, which is kept in ``references``."""
    reference = _uninterrupted(job, references)
    outcome = storm(job).run(within_s=within_s)
    lives = read_lives(job.folder)
    wrong = [*overlaps(lives), *wrong_steps(lives, read_lives(reference))]
    lost = list(outcome.lost)
    if not lost:
        final = job.folder / "final"
        if not final.exists():
            lost.append("the job has succeeded, and there is no final state")
        elif final.read_text() != (reference / "final").read_text():
            wrong.append("the final state is not that of the uninterrupted run")
    first_s, last_s = _first_and_last(lives)
    return Part(
        seed=seed,
        shape=job.shape,
        n_nodes=job.n_nodes,
        nproc=job.nproc,
        spares=job.spares,
        steps=all_steps(lives),
        faults=[(at_s - first_s, fault, how) for at_s, fault, how in outcome.faults],
        attempts=len({life.attempt for life in lives if life.lines}),
        repeated=repeated_steps(lives),
        step_s=step_s(lives),
        trained_s=last_s - first_s,
        lost=lost,
        orphans=outcome.orphans,
        wrong=wrong,
        load=os.getloadavg()[0],
    )


def _first_and_last(lives: list[Life]) -> tuple[float, float]:
    at = [line.at_s for life in lives for line in life.lines]
    return (min(at), max(at)) if at else (0.0, 1.0)


def _uninterrupted(job: Job, references: Path) -> Path:
    """Train as ``job`` does, on one node, as fast as it goes and without a fault, if that has not been done yet."""
    kept = references / f"{job.world}-ranks-{job.steps}-steps"
    if kept.exists():
        return kept
    folder = references / f".{job.token}"
    folder.mkdir(parents=True)
    words = [sys.executable, "-m", "perdure", "run", "--nproc", str(job.world), "--job", f"{job.name}-calm"]
    words += ["--", sys.executable, str(HERE / "storm_train.py"), str(folder), "--to", str(folder / "checkpoints")]
    words += ["--steps", str(job.steps)]
    env = os.environ | {"PYTHONPATH": SRC, "PERDURE_STATE": str(folder / "state"), "PERDURE_LEASE_S": "1"}
    began = time.monotonic()
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, f"the uninterrupted run: {ended.stderr[-3000:]}"
    job.note(f"the uninterrupted run took {time.monotonic() - began:.0f} s")
    shutil.rmtree(folder / "checkpoints")
    folder.rename(kept)
    return kept

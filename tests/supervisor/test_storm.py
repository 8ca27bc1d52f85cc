"""Two faults close together, on real ranks under real launchers: the training ends with the bits of a calm one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from storm import Fault, Storm
from storm_job import Job, Shape
from storm_part import play


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("shape", "first", "second"),
    [
        pytest.param("front", "controller killed", "launcher killed", marks=pytest.mark.slow),
        pytest.param("joined", "node killed", "rank raised", marks=pytest.mark.slow),
        pytest.param("joined", "launcher killed", "controller killed", marks=pytest.mark.slow),
        pytest.param("front", "front killed", "node stopped", marks=pytest.mark.slow),
    ],
    ids=lambda each: str(each).replace(" ", "-"),
)
def test_two_faults_cost_time_alone(tmp_path: Path, shape: Shape, first: Fault, second: Fault) -> None:
    faults = iter([(0.5, first), (3.0, second)])

    def storm(job: Job) -> Storm:
        return Storm(job, dice=random.Random(0), draw=lambda: next(faults, None))

    job = Job(
        tmp_path / "job",
        n_nodes=2,
        nproc=1,
        spares=1,
        steps=60,
        shape=shape,
        pace_s=0.2,  # so that both faults fall into it on any machine
        lease_s=3.0,
        orphan_s=5.0,
    )
    part = play(job, seed=0, storm=storm, within_s=180, references=tmp_path / "references")
    told = "\n".join(job.notes)
    assert (part.lost, part.orphans, part.wrong) == ([], [], []), told
    assert [fault for _, fault, _ in part.faults] == [first, second], told
    assert part.attempts >= 2, told
    assert part.steps == job.steps

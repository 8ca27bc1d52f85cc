"""Which run of a job a controller that starts belongs to, however late it comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from perdure.supervisor import JobFolder, NodeFacts, Spec
from perdure.supervisor.job import Job, State
from perdure.supervisor.journal import Journal
from perdure.supervisor.running import next_job
from perdure.testing.jobs import SteppingJob


def spec(start: str, **changes: int) -> Spec:
    return Spec(name="job", command=("x",), start=start, **changes)


def test_a_run_that_was_left_off_goes_on_and_one_that_is_over_does_not(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    first, again = next_job(journal, spec("a"), wall=1.0) or (None, None)
    assert first is not None
    assert again is False
    place = NodeFacts(name="n", host="h", nproc=1, machine="another", pid=1)
    journal.write(msgspec.structs.replace(first, state=State.EXECUTE, places=(place,)), [], run=first.run, at=2.0)
    for late in ("a", "b"):
        taken = next_job(journal, spec(late), wall=3.0)
        assert taken is not None
        assert (taken[0].run, taken[0].state, taken[0].term, taken[1]) == (first.run, State.EXECUTE, 1, True)
    journal.write(msgspec.structs.replace(first, state=State.SUCCEEDED), [], run=first.run, at=4.0)
    assert next_job(journal, spec("b"), wall=5.0) is None  # it went on as b, and b is over
    anew = next_job(journal, spec("c"), wall=6.0)
    assert anew is not None
    assert anew[0].run != first.run
    assert anew[1] is False
    journal.close()


def test_controllers_that_come_when_the_job_is_over_begin_nothing(tmp_path: Path) -> None:
    with SteppingJob(tmp_path, nodes=2, spares=0, nproc=1) as job:
        job.wait_for_step(5)
        assert job.finish() == [0, 0]
        folder = JobFolder(job.home, job.name)
        before = _newest(folder)
        assert before.state is State.SUCCEEDED
        late = subprocess.run(
            [sys.executable, "-m", "perdure", "controller", "--folder", str(folder.path), "--listen", "127.0.0.1:0"],
            timeout=60,
            capture_output=True,
            text=True,
        )
        assert (late.returncode, late.stderr) == (0, "")
        assert _newest(folder) == before


def _newest(folder: JobFolder) -> Job:
    journal = Journal(folder.journal, write=False)
    kept = journal.newest()
    journal.close()
    assert kept is not None
    return kept.job

"""Who asks about a job without a controller gets what its journal has, as new as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import CallError, LinkLost, StorageError
from perdure.events import AttemptStarted, Notice
from perdure.supervisor import JobFolder, NodeFacts, Spec
from perdure.supervisor.asking import Asker, askers_in
from perdure.supervisor.job import Job, State
from perdure.supervisor.journal import Journal
from perdure.supervisor.vocabulary import Drain


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path, "job")
    folder.make()
    return folder


def job(state: State, *, attempt: int = 0, step: int = 0, run: str = "r") -> Job:
    places = (NodeFacts(name="a", host="h", nproc=2), NodeFacts(name="b", host="i", nproc=3))
    return Job(name="job", run=run, state=state, attempt=attempt, best_step=step, places=places)


def test_steps_of_an_attempt_take_one_row_of_the_journal(folder: JobFolder) -> None:
    journal = Journal(folder.journal)
    journal.begin("r", Spec(name="job", command=("x",)), at=1.0)
    journal.write(job(State.EXECUTE), [], run="r", at=1.0)
    journal.write(job(State.EXECUTE, step=1), [], run="r", at=2.0)
    for i in range(5):
        journal.write(job(State.EXECUTE, step=10 * (i + 1)), [], run="r", at=10.0 + i, instead=i > 0)
    journal.write(job(State.VERIFY, step=51), [], run="r", at=20.0)
    found = [(moment.at, moment.state, moment.step) for moment in journal.moments("r")]
    assert found == [
        (1.0, State.EXECUTE, 0),
        (2.0, State.EXECUTE, 1),
        (14.0, State.EXECUTE, 50),
        (20.0, State.VERIFY, 51),
    ]
    assert journal.moments("another") == ()
    journal.close()


def test_a_job_is_shown_as_its_journal_has_it_now(folder: JobFolder) -> None:
    journal = Journal(folder.journal)
    journal.begin("r", Spec(name="job", command=("x",)), at=1.0)
    journal.write(job(State.EXECUTE), [AttemptStarted(attempt=0, world=5)], run="r", at=1.0)
    asker = Asker("job", folder=folder)
    seen = asker.look()
    assert (seen.live, seen.view.job.state, seen.view.now_at) == (False, State.EXECUTE, 1.0)
    assert "has no controller; this is what its journal has" in seen.note
    assert [(node.base, node.standing) for node in seen.view.nodes] == [(0, "unknown"), (2, "unknown")]
    assert asker.look().view is seen.view  # nothing was written: nothing is read
    journal.write(job(State.STOPPED, step=9), [Notice(text="done")], run="r", at=5.0)
    seen = asker.look()
    assert (seen.view.job.state, seen.note) == (State.STOPPED, "the job is over: stopped")
    assert [told.kind for told in seen.view.facts] == ["attempt-started", "notice"]
    assert {node.standing for node in seen.view.nodes} == {"released"}
    assert asker.look(history=False).view.moments == ()

    journal.begin("s", Spec(name="job", command=("x",)), at=6.0)
    journal.write(job(State.START, attempt=-1, run="s"), [], run="s", at=6.0)
    seen = asker.look()
    assert (seen.view.job.run, seen.view.facts) == ("s", ())
    journal.close()
    assert asker.look().view.job.run == "s"  # nobody has it open any more


def test_orders_need_a_controller(folder: JobFolder) -> None:
    Journal(folder.journal).close()
    asker = Asker("job", folder=folder)
    assert not asker.listening()
    with pytest.raises(LinkLost, match="has no controller"):
        asker.order(Drain("a"))
    with pytest.raises(CallError, match="has not begun yet"):
        asker.look()


def test_what_cannot_be_shown_says_why(tmp_path: Path, folder: JobFolder) -> None:
    assert [asker.name for asker in askers_in(tmp_path)] == ["job"]
    assert askers_in(tmp_path / "none") == []
    with pytest.raises(CallError, match="there is no job job here"):
        Asker("job", folder=folder).look()
    folder.journal.write_bytes(b"no database at all, whatever it is called")
    with pytest.raises(StorageError, match=r"journal\.sqlite"):
        Asker("job", folder=folder).look()
    with pytest.raises(LinkLost, match="refused"):
        Asker("job", address=("127.0.0.1", 9), secret=b"x").look()


def test_a_controller_that_died_is_no_controller(folder: JobFolder) -> None:
    journal = Journal(folder.journal)
    journal.begin("r", Spec(name="job", command=("x",)), at=1.0)
    journal.write(job(State.EXECUTE), [], run="r", at=1.0)
    journal.close()
    folder.token()
    folder.publish(("127.0.0.1", 9), term=0)
    seen = Asker("job", folder=folder).look()
    assert not seen.live
    assert "127.0.0.1:9" in seen.note

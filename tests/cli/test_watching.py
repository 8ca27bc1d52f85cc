"""What lies between launchers, the watcher and the controller: the words, the names, the file, and the processes."""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from perdure.cli.beside import Beside
from perdure.cli.verdict_file import Line, VerdictFile, incident_of, past_of, read_lines
from perdure.cli.watch_eye import Known, as_known, packed, unpacked
from perdure.cli.watch_judge import Judging
from perdure.cli.watch_mute import seconds_of
from perdure.errors import CallError, ProtocolError
from perdure.supervisor.vocabulary import Acknowledge, Mute
from perdure.supervisor.watching import MAX_LOOK_BYTES, Began, Ending, Gone, Said
from perdure.watcher.evidence import Stage
from perdure.watcher.job_watch import JobWatch
from perdure.watcher.labels import Action, Label
from perdure.watcher.samples import LogLine, NodeLook, NodeSample, RankSample

# --- what the launcher knows ------------------------------------------------------------------------------------------


def known(*told: Began | Gone | Ending) -> Known:
    now = Known()
    for each in told:
        now = now.after(each)
    return now


def look(*states: str) -> NodeLook:
    samples = [RankSample(rank=i, node="n0", at_s=1.0, pid=10 + i, state=state) for i, state in enumerate(states)]
    return NodeLook(node="n0", samples=tuple(samples))


BEGAN = Began(attempt=3, ranks=(0, 1, 2))


def test_the_end_of_a_rank_counts_once_the_launcher_has_said_it() -> None:
    before = as_known(look("S", "Z", "X"), known(BEGAN))
    assert (before.attempt, [each.rank for each in before.samples]) == (3, [0])
    after = as_known(look("S", "Z", "X"), known(BEGAN, Gone(rank=1, pid=11, signal=9), Gone(rank=2, pid=12, code=0)))
    assert [(each.rank, each.exit_code, each.exit_signal) for each in after.samples] == [
        (0, None, None),
        (1, None, 9),
        (2, 0, None),
    ]


def test_ranks_that_the_launcher_ends_say_nothing_and_the_first_dead_stays() -> None:
    now = known(BEGAN, Gone(rank=1, pid=11, code=1), Ending(), Gone(rank=0, pid=10, signal=9))
    assert [(each.rank, each.exit_code) for each in as_known(look("S", "Z", "R"), now).samples] == [(1, 1)]
    said = Said(((0, "Connection closed by peer"), (1, "ValueError: bad"), (1, "")))
    assert [each.text for each in now.lines_of(said, node="n0", at_s=1.0)] == ["ValueError: bad"]


def test_a_rank_without_a_record_is_known_by_its_end_and_one_of_another_job_is_left_out() -> None:
    now = known(Began(attempt=0, ranks=(4,)), Gone(rank=4, pid=99, code=7))
    (sample,) = as_known(look("S"), now).samples
    assert (sample.rank, sample.pid, sample.exit_code, sample.state) == (4, 99, 7, "X")


def test_what_is_too_long_goes_in_parts_and_arrives_whole() -> None:
    lines = tuple(LogLine(text="x" * 9000, at_s=1.0, rank=i) for i in range(200))
    whole = msgspec.structs.replace(look("S"), lines=lines, host=NodeSample(node="n0", at_s=1.0), attempt=5)
    parts = [unpacked(part) for part in packed(whole)]
    assert len(parts) > 3
    assert all(len(part) <= MAX_LOOK_BYTES for part in packed(whole))
    assert tuple(line for part in parts for line in part.lines) == lines
    assert tuple(each for part in parts for each in part.samples) == whole.samples
    assert [part.host for part in parts if part.host is not None] == [whole.host]
    assert {part.attempt for part in parts} == {5}
    endless = msgspec.structs.replace(whole, lines=(LogLine(text="x" * (MAX_LOOK_BYTES + 1), at_s=1.0), *lines[:2]))
    assert sum(len(unpacked(part).lines) for part in packed(endless)) == 2


def test_what_is_no_look_is_refused_by_name() -> None:
    bomb = zlib.compress(b"\0" * (MAX_LOOK_BYTES + 1))
    for message in (b"", b"x", bomb, zlib.compress(b"no look"), next(packed(look("S")))[:-3]):
        with pytest.raises(ProtocolError, match="a look of a node"):
            unpacked(message)


# --- from looks to verdicts with names of the job's own ---------------------------------------------------------------


class Life:
    """A job of four ranks that is looked at each second."""

    def __init__(self, lines: list[Line] | None = None, *, run: str = "abcd1234") -> None:
        self.now, self.lines = 100.0, list(lines or ())
        past = past_of(self.lines, now_s=self.now, wall_s=1000.0)
        self.judging = Judging(JobWatch(past=past), run=run, known=self.lines)
        self.step = 0

    def pass_time(self, seconds: int, attempt: int, *, dead: int | None = None, stopped: int | None = None) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.step += 1
            samples = []
            for rank in range(4):
                sample = RankSample(
                    rank=rank,
                    node=f"n{rank // 2}",
                    at_s=self.now,
                    pid=100 * attempt + rank + 1,
                    beat=self.step,
                    beat_age_s=0.1,
                    step=3 if rank == stopped else self.step,
                    phase="forward",
                    state="T" if rank == stopped else "S",
                )
                if rank == dead:
                    sample = msgspec.structs.replace(sample, exit_code=1, state="X")
                samples.append(sample)
            for i in range(2):
                mine = tuple(samples[2 * i : 2 * i + 2])
                self.judging.take(NodeLook(node=f"n{i}", attempt=attempt, samples=mine))
            self.turn()

    def turn(self) -> None:
        self.lines += self.judging.turn(now_s=self.now, wall_s=900.0 + self.now)


def test_names_begin_with_the_run_and_go_on_after_a_restart_of_the_watcher() -> None:
    life = Life()
    life.pass_time(5, 3)
    life.pass_time(3, 3, stopped=1)
    assert {line.incident for line in life.lines} == {"abcd-3.1"}
    found = life.judging.found(life.lines)
    assert (found.judged[0].attempt, found.judged[0].ranks, found.judged[0].stage) == (3, (1,), "verdict")
    again = Life(life.lines)
    again.pass_time(5, 3)
    again.pass_time(3, 3, stopped=1)
    assert {line.incident for line in again.lines} == {"abcd-3.1", "abcd-3.2"}
    other = Life(life.lines, run="ffff0000")
    other.pass_time(5, 3)
    other.pass_time(3, 3, stopped=1)
    assert other.lines[-1].incident == "ffff-3.1"


def test_a_death_is_judged_although_the_next_attempt_has_begun_already() -> None:
    life = Life()
    life.pass_time(5, 0)
    life.pass_time(1, 0, dead=2)
    life.pass_time(6, 1)
    told = [(line.stage, line.ranks, line.attempt) for line in life.lines]
    assert told == [(Stage.VERDICT, (2,), 0), (Stage.CLEARED, (2,), 0)]
    life.pass_time(3, 1, stopped=0)
    assert (life.lines[-1].incident, life.lines[-1].attempt) == ("abcd-1.1", 1)


def test_a_death_is_looked_at_at_once_and_looks_at_attempts_that_are_over_are_not() -> None:
    life = Life()
    life.pass_time(3, 1)
    gone = RankSample(rank=0, node="n0", at_s=1.0, exit_code=1)
    assert life.judging.take(NodeLook(node="n0", attempt=1, samples=(gone,)))
    assert not life.judging.take(NodeLook(node="n0", attempt=0, samples=(gone,)))


def test_what_a_person_says_is_passed_on_and_what_is_over_or_unknown_does_nothing() -> None:
    life = Life()
    life.judging.tell(Mute(rank=1, for_s=60.0), now_s=life.now)
    life.judging.tell(Mute(label="no.label"), now_s=life.now)
    life.judging.tell(Acknowledge("abcd-0.9"), now_s=life.now)
    life.pass_time(5, 0)
    life.pass_time(5, 0, stopped=1)
    assert life.lines == []
    life.pass_time(60, 0, stopped=1)
    assert life.lines[0].ranks == (1,)


# --- the file ---------------------------------------------------------------------------------------------------------


def line(number: int, *, where: tuple[str, ...] | None = None, wall_s: float = 1000.0, run: str = "r") -> Line:
    return Line(
        incident=f"r-0.{number}",
        stage=Stage.VERDICT,
        label=Label.NAN,
        owner="data",  # type: ignore[arg-type]
        action=Action.ROLLBACK,
        confidence=0.9,
        sentence="it is so",
        at_s=5.0,
        run=run,
        attempt=0,
        wall_s=wall_s,
        where=where,
    )


def test_the_file_keeps_every_line_also_behind_one_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    file = VerdictFile(path)
    file.append([])
    assert not path.exists()
    file.append([line(1), line(2)])
    with open(path, "ab") as raw:
        raw.write(b'{"incident": "r-0.')
    file.append([line(3)])
    assert [each.incident for each in read_lines(path)] == ["r-0.1", "r-0.2", "r-0.3"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_lines(tmp_path / "none") == []


def test_a_file_that_has_grown_is_put_aside_and_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.cli.verdict_file._MOST_BYTES", 300)
    path = tmp_path / "verdicts.jsonl"
    for number in range(1, 4):
        VerdictFile(path).append([line(number)])
    assert (tmp_path / "verdicts.jsonl.1").exists()
    assert [each.incident for each in read_lines(path)][-1] == "r-0.3"


def test_the_past_is_what_was_acted_on_on_the_clock_of_now() -> None:
    past = past_of([line(1), line(2, where=("n1",), wall_s=940.0)], now_s=70.0, wall_s=1000.0)
    (entry,) = past.entries
    assert (entry.at_s, entry.label, entry.action, entry.where) == (10.0, Label.NAN, Action.ROLLBACK, ("n1",))


def test_an_incident_is_found_by_its_name_or_the_end_of_it() -> None:
    lines = [line(1), line(2), line(1)]
    assert len(incident_of(lines, "r-0.1", where="job x")) == 2
    assert len(incident_of(lines, "0.2", where="job x")) == 1
    with pytest.raises(CallError, match=r"job x has no incident 9\.9; it has r-0\.1, r-0\.2"):
        incident_of(lines, "9.9", where="job x")
    with pytest.raises(CallError, match="it has none"):
        incident_of([], "9.9", where="job x")


@pytest.mark.parametrize("text", ["", "m", "-1", "1 m", "1w"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(CallError, match="is no time"):
        seconds_of(text)


# --- the processes ----------------------------------------------------------------------------------------------------

ECHO = """
import os, select, socket, sys
from perdure.cli.beside import Frames
frames = Frames(socket.socket(fileno=int(sys.argv[1])))
frames.send(b"pid %d" % os.getpid())
try:
    while True:
        select.select([frames], [], [])
        for body in frames.receive():
            if body == b"fail":
                raise SystemExit("it cannot go on")
            frames.send(body)
except EOFError:
    pass
"""


class Steps:
    """A clock that moves when it is told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def until(poll: Callable[[], list[bytes]], *, within_s: float = 30.0) -> list[bytes]:
    give_up = time.monotonic() + within_s
    while not (found := poll()):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    return found


def wait_for(true: Callable[[], object], *, within_s: float = 30.0) -> None:
    until(lambda: [b"."] if true() else [], within_s=within_s)


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "echo_beside.py").write_text(ECHO)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{path}" if path else str(tmp_path))
    return "echo_beside"


def test_a_process_beside_is_started_when_it_is_wanted_again_when_it_dies_and_three_times_in_all(echo: str) -> None:
    clock = Steps()
    beside = Beside(echo, first=lambda: [b"first"], what="the echo", clock=clock)
    beside.send(b"lost: there is nobody yet")
    assert beside.poll() == []
    beside.begin(in_s=2.0)
    assert (beside.poll(), beside.pid) == ([], None)
    clock.now = 2.0
    for life in range(3):
        wait_for(lambda: beside.poll() is not None and beside.pid)
        heard: list[bytes] = []
        while len(heard) < 2:
            heard += until(beside.poll)
        assert (heard[0][:3], heard[1]) == (b"pid", b"first")
        beside.send(b"fail")
        wait_for(lambda: beside.poll() is not None and beside.pid is None)
        problem = beside.problem()
        assert problem.startswith("the echo has ended (it cannot go on);")
        assert problem.endswith("the job goes on" if life < 2 else "the job goes on without it")
        assert beside.problem() == ""
        clock.now += 11.0
    beside.begin()
    assert (beside.poll(), beside.pid) == ([], None)
    beside.close()


def test_a_process_that_does_not_read_keeps_nobody_waiting_and_one_that_is_silent_is_ended(
    echo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.cli.beside._MOST_QUEUED_BYTES", 1 << 20)
    clock = Steps()
    beside = Beside(echo, first=list, what="the echo", clock=clock)
    beside.begin()
    beside.poll()
    until(beside.poll)
    assert beside.pid is not None
    os.kill(beside.pid, signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(100):
        beside.send(b"x" * 100_000)
        beside.poll()
    assert beside._queued_bytes <= 1 << 20
    assert time.monotonic() - began < 10.0
    clock.now = 61.0
    beside.poll()
    assert beside.pid is not None  # it was we who had not looked
    for _ in range(31):
        clock.now += 2.0
        beside.poll()
    assert (beside.pid, "has said nothing for 60 s" in beside.problem()) == (None, True)
    beside.close()
    beside.close()

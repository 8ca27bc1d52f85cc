"""Process trees with real processes: whatever a rank leaves behind is found and ended, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from perdure.clock import Deadline
from perdure.errors import CallError, LinkLost
from perdure.process import marked
from perdure.process.tree import Ending, Guard, Rank, kill_attempt, stop_attempt

SRC = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def mark() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    assert marked.sweep(name, timeout_s=5)[1] == []


def env(mark: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PERDURE_MARK": mark, "PYTHONPATH": SRC}


def until(true: Callable[[], object], *, within_s: float = 5.0) -> None:
    give_up = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.005)


def exists(pid: int) -> bool:
    fields = marked.stat_fields(pid)
    return fields is not None and fields[0] != b"Z"


def test_a_death_is_seen_at_once_and_its_pid_stays_taken_until_reaped(mark: str) -> None:
    rank = Rank.start(["sleep", "100"], env=env(mark))
    assert rank.poll() is None
    rank.send(signal.SIGKILL)
    until(rank.poll)
    assert rank.poll() == Ending(signal=9)
    assert marked.zombies([rank.pid]) == [rank.pid]
    rank.reap()
    rank.close()
    assert marked.stat_fields(rank.pid) is None


def test_exit_codes_and_output_come_through(mark: str) -> None:
    rank = Rank.start(["sh", "-c", "echo out; echo err >&2; exit 3"], env=env(mark))
    until(rank.poll)
    assert (rank.poll(), os.read(rank.stdout, 9), os.read(rank.stderr, 9)) == (Ending(code=3), b"out\n", b"err\n")
    rank.reap()
    rank.close()


def test_a_command_that_does_not_exist_is_a_call_error() -> None:
    with pytest.raises(CallError, match="cannot start /no/such"):
        Rank.start(["/no/such"], env={})


class NoStandby:
    def fork(
        self, command: Sequence[str], *, env: Mapping[str, str], stdout: int, stderr: int, deadline: Deadline
    ) -> int:
        raise LinkLost(f"{len({stdout, stderr})} pipes for {command}")


def test_a_standby_that_fails_leaves_no_pipe_open() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(LinkLost, match="2 pipes"):
        Rank.fork(NoStandby(), ["python"], env={}, deadline=Deadline.after(1, "a rank"))
    assert os.listdir("/proc/self/fd") == before


LEAVERS = {
    "a child": "sleep 100 & wait",
    "a daemon that forked twice and took its own session": "(setsid sleep 100 &) ; exit 0",
    "a child deaf to SIGTERM": "trap '' TERM; (trap '' TERM HUP INT; exec sleep 100) & wait",
    "a child in the session without the mark": "env -u PERDURE_MARK sleep 100 & exec sleep 100",
}


@pytest.mark.parametrize("script", LEAVERS.values(), ids=LEAVERS.keys())
def test_nothing_of_an_attempt_survives_its_end(script: str, mark: str) -> None:
    rank = Rank.start(["sh", "-c", script], env=env(f"{mark}.0"))
    until(lambda: b"sleep" in b"".join(_comms(f"{mark}.0", rank.pid)))
    pids = marked.pids_marked(f"{mark}.0", sessions={rank.pid})
    killed = stop_attempt([rank], f"{mark}.0", grace_s=0.1)
    assert killed.left == ()
    assert not any(exists(pid) for pid in pids)


def _comms(mark: str, session: int) -> Iterator[bytes]:
    for pid in marked.pids_marked(mark, sessions={session}):
        try:
            yield Path(f"/proc/{pid}/comm").read_bytes()
        except OSError:
            pass


def test_processes_that_fork_while_they_are_killed_do_not_escape(mark: str) -> None:
    script = """
import os, time
for i in range(400):  # one daemon after another, each in its own session and with a child of its own
    if os.fork() == 0:
        os.setsid()
        os.fork()
        time.sleep(100)
    time.sleep(0.001)
"""
    rank = Rank.start([sys.executable, "-S", "-c", script], env=env(mark))
    time.sleep(0.1)
    assert kill_attempt(mark, sessions=[rank.pid]).left == ()
    assert marked.pids_marked(mark, sessions={rank.pid}) == []
    rank.reap()
    rank.close()


def test_what_was_started_without_the_mark_in_a_session_of_its_own_lives_on(mark: str) -> None:
    rank = Rank.start(["sh", "-c", "env -u PERDURE_MARK setsid sleep 100 & echo $!; wait"], env=env(mark))
    agent = int(os.read(rank.stdout, 20))
    until(lambda: Path(f"/proc/{agent}/comm").read_text() == "sleep\n")
    kill_attempt(mark, sessions=[rank.pid])
    assert exists(agent)
    os.kill(agent, signal.SIGKILL)
    rank.reap()
    rank.close()


def test_only_the_attempt_that_is_meant_is_killed(mark: str) -> None:
    ranks = [Rank.start(["sleep", "100"], env=env(value)) for value in (f"{mark}.1", f"{mark}.10", f"outer.0:{mark}.1")]
    until(lambda: len(marked.pids_marked(mark)) == 3)
    kill_attempt(f"{mark}.1", sessions=())
    assert [rank.poll() for rank in ranks] == [Ending(signal=9), None, Ending(signal=9)]
    kill_attempt(mark, sessions=())
    for rank in ranks:
        rank.reap()
        rank.close()


LAUNCHER = """
import sys, time
from perdure.process.tree import Guard, Rank
mark, with_guard = sys.argv[1], sys.argv[2] == "guard"
guard = Guard(mark) if with_guard else None
if guard is not None:
    guard.keep_lease(1.5)
rank = Rank.start(["sh", "-c", sys.argv[3]], env={"PATH": "/usr/bin:/bin", "PERDURE_MARK": mark + ".0"})
print(rank.pid, guard.pid if guard else 0, flush=True)
time.sleep(100)
"""


def launch(mark: str, guard: str, script: str) -> tuple[subprocess.Popen[bytes], int, int]:
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, mark, guard, script], stdout=subprocess.PIPE, env=env("none")
    )
    assert process.stdout is not None
    rank, guard_pid = map(int, process.stdout.readline().split())
    return process, rank, guard_pid


def test_when_the_launcher_is_killed_the_guard_kills_what_the_ranks_left_and_goes(mark: str) -> None:
    process, _, guard = launch(mark, "guard", "(setsid sleep 100 &); (setsid sleep 100 &); exec sleep 100")
    with process:
        until(lambda: len(marked.pids_marked(mark)) == 3)
        os.kill(guard, signal.SIGTERM)  # polite signals do not move it
        process.kill()
        until(lambda: not marked.pids_marked(mark))
        until(lambda: not exists(guard))


def test_while_the_launcher_is_stopped_longer_than_its_lease_the_guard_kills_and_stays(mark: str) -> None:
    process, rank, guard = launch(mark, "guard", "exec sleep 100")
    with process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(1.5)
        assert exists(rank)  # it was stopped for less
        process.send_signal(signal.SIGSTOP)
        until(lambda: not marked.pids_marked(mark))
        assert exists(guard)
        process.send_signal(signal.SIGCONT)
        process.kill()
        until(lambda: not exists(guard))


def test_ranks_die_with_the_launcher_even_if_the_guard_was_killed_too(mark: str) -> None:
    process, rank, _ = launch(mark, "no guard", "exec sleep 100")
    with process:
        process.kill()
        until(lambda: not exists(rank))


def test_a_dismissed_guard_is_gone_and_has_killed_nothing(mark: str) -> None:
    rank = Rank.start(["sleep", "100"], env=env(f"{mark}.0"))
    guard = Guard(mark)
    assert guard.alive()
    guard.dismiss()
    guard.dismiss()
    assert not exists(guard.pid)
    assert rank.poll() is None
    kill_attempt(mark, sessions=[])
    rank.reap()
    rank.close()


ORPHANS = """
import os, subprocess, time
from perdure.process.tree import become_subreaper, reap_orphans
become_subreaper()
own = subprocess.Popen(["true"])
subprocess.run(["sh", "-c", "(sleep 0.05 &) ; exit 0"])
give_up = time.monotonic() + 5
reaped = []
while len(reaped) < 1 and time.monotonic() < give_up:
    reaped += reap_orphans(keep={own.pid})
    time.sleep(0.01)
assert len(reaped) == 1 and own.pid not in reaped, reaped
assert own.wait() == 0
"""


def test_orphans_come_to_the_launcher_and_are_reaped() -> None:
    subprocess.run([sys.executable, "-c", ORPHANS], env=env("none"), check=True, timeout=20)

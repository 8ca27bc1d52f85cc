"""The launcher with real processes: it restarts fast, gives up when it should, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.events import JobFailed, JobStopped, JobSucceeded, RankDied

Launch = Callable[..., object]


def kinds(job) -> list[str]:
    return [type(entry.fact).__name__ for entry in job.events()]


def fact(job, kind):
    return next(entry.fact for entry in job.events() if isinstance(entry.fact, kind))


def test_ranks_get_their_places_and_their_output_is_passed_on_with_them(launch: Launch, tmp_path: Path) -> None:
    job = launch(
        "print('hello', os.environ['WORLD_SIZE'], os.environ['LOCAL_RANK'])\n"
        "print('half', end=''); sys.stderr.write('oops\\n')",
        nproc=3,
        log_dir=str(tmp_path / "logs"),
    )
    code, out, err = job.end()
    assert code == 0
    lines = [f"[{rank}] {text}" for rank in range(3) for text in (f"hello 3 {rank}", "half")]
    assert sorted(out.splitlines()) == sorted(lines)
    assert [line for line in sorted(err.splitlines()) if line.startswith("[")] == [
        f"[{rank}] oops" for rank in range(3)
    ]
    assert sorted((tmp_path / "logs/attempt-0/rank-1.log").read_text().split()) == ["1", "3", "half", "hello", "oops"]
    assert kinds(job) == ["AttemptStarted", "AttemptStopped", "JobSucceeded"]
    assert (tmp_path / "released").exists()


def test_a_killed_rank_restarts_all_ranks_within_a_second(launch: Launch) -> None:
    job = launch("say(f'up-{attempt}-{rank}')\nif attempt == 0: time.sleep(100)", nproc=4)
    job.await_files(*(f"up-0-{rank}" for rank in range(4)))
    victim = _pid_of(job, rank=2)
    killed_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    code, _, err = job.end()
    assert code == 0
    assert max(job.time_of(f"up-1-{rank}") for rank in range(4)) - killed_at < 1.0
    died = next(entry for entry in job.events() if isinstance(entry.fact, RankDied))
    assert died.fact == RankDied(rank=2, attempt=0, signal=9)
    assert died.monotonic - killed_at < 0.05
    assert "rank 2 failed first: it was killed by SIGKILL" in err
    assert "starting all ranks again at once" in err
    assert len(set(job.marks())) == 2


def _pid_of(job, *, rank: int) -> int:
    for pid in job.alive():
        if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
            return pid
    raise AssertionError(f"rank {rank} does not run")


def test_the_next_attempt_has_another_port(launch: Launch) -> None:
    job = launch(
        "open(f'{here}/port-{attempt}', 'w').write(os.environ['MASTER_PORT']); sys.exit(attempt == 0)", nproc=1
    )
    assert job.end()[0] == 0
    ports = {(job.folder / f"port-{attempt}").read_text() for attempt in range(2)}
    assert len(ports) == 2


def test_a_failure_that_repeats_itself_ends_the_job_with_its_error_in_front(launch: Launch) -> None:
    job = launch(
        "if rank == 1: raise ValueError(f'bad shape in process {os.getpid()}')\ntime.sleep(100)",
        nproc=2,
        max_restarts=50,
    )
    code, _, err = job.end()
    assert code == 1
    assert len(job.marks()) == 2
    failed = fact(job, JobFailed)
    assert (failed.rank, failed.code) == (1, 1)
    tail = err[err.rindex("rank 1 failed first") :]
    assert "  | ValueError: bad shape" in tail
    assert "failed the same way twice" in tail


def test_a_crash_loop_without_progress_ends_when_the_budget_is_spent(launch: Launch) -> None:
    job = launch("sys.exit(10 + attempt)", nproc=1, max_restarts=1)
    code, _, err = job.end()
    assert code == 11
    assert "1 restarts in a row brought no new step" in err


def test_restarts_that_bring_new_steps_are_not_counted(launch: Launch) -> None:
    job = launch(
        "page_record().step = attempt + 1\nsys.exit(3 if attempt < 4 else 0)", nproc=1, max_restarts=1, bare=False
    )
    assert job.end()[0] == 0
    assert len(job.marks()) == 5


def test_peers_that_fall_with_the_first_rank_are_folded_behind_it(launch: Launch) -> None:
    job = launch(
        "if rank == 1:\n"
        "    sys.stderr.write('ValueError: the loss is nan\\n'); say('spoken'); time.sleep(0.2); sys.exit(1)\n"
        "while not os.path.exists(here + '/spoken'): time.sleep(0.01)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sys.stderr.write('RuntimeError: Connection closed by peer\\n'); sys.exit(2)",
        nproc=3,
        max_restarts=0,
    )
    code, _, err = job.end()
    assert code == 1
    assert "rank 1 failed first: it exited with code 1" in err
    assert "  | ValueError: the loss is nan" in err
    assert "after it: rank" in err
    assert "  | RuntimeError" not in err


LEAVE_A_DAEMON = """
import subprocess
subprocess.Popen(["setsid", "sleep", "100"])
deaf = "trap '' TERM INT HUP; (setsid sleep 100 &); while :; do sleep 1; done"
subprocess.Popen(["sh", "-c", deaf], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    time.sleep(100)
time.sleep(0.1)
say(f"up-{rank}")
"""


@pytest.mark.parametrize("end", ["", "sys.exit(1)"], ids=["after success", "after a failure"])
def test_no_process_of_the_job_is_left(launch: Launch, end: str) -> None:
    job = launch(LEAVE_A_DAEMON + end, nproc=2, max_restarts=0)
    code, _, err = job.end()
    assert code == (1 if end else 0), err
    assert job.alive() == []


def test_nothing_is_left_within_five_seconds_when_the_launcher_is_killed(launch: Launch) -> None:
    job = launch(LEAVE_A_DAEMON + "time.sleep(100)", nproc=2)
    job.await_files("up-0", "up-1")
    pids = job.alive()
    assert len(pids) >= 8
    job.process.kill()
    give_up = time.monotonic() + 5
    while job.alive():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_ranks_may_save_for_a_second_when_the_job_is_asked_to_stop(launch: Launch) -> None:
    job = launch(
        "def save(*_):\n    time.sleep(1); say(f'saved-{rank}'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); say(f'up-{rank}'); time.sleep(100)",
        nproc=2,
    )
    job.await_files("up-0", "up-1")
    job.process.send_signal(signal.SIGTERM)
    code, _, err = job.end()
    assert code == 143
    job.await_files("saved-0", "saved-1")
    assert fact(job, JobStopped).killed == 0
    assert "the job stopped on SIGTERM" in err


def test_a_rank_that_is_deaf_to_the_request_is_killed_after_the_grace(launch: Launch) -> None:
    job = launch("signal.signal(signal.SIGTERM, signal.SIG_IGN); say(f'up-{rank}'); time.sleep(100)", grace_s=0.3)
    job.await_files("up-0", "up-1")
    asked_at = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.end()[0] == 130
    assert 0.3 <= time.monotonic() - asked_at < 3
    assert fact(job, JobStopped).killed == 2
    assert job.alive() == []


def test_a_second_request_kills_at_once(launch: Launch) -> None:
    job = launch("signal.signal(signal.SIGTERM, signal.SIG_IGN); say(f'up-{rank}'); time.sleep(100)", grace_s=100)
    job.await_files("up-0", "up-1")
    job.process.send_signal(signal.SIGTERM)
    time.sleep(0.7)
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGTERM)
    assert job.end(within_s=5)[0] == 143


def test_a_closed_terminal_stops_the_job_unless_it_was_started_to_outlive_it(launch: Launch) -> None:
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may have been started by nohup
    try:
        stopped = launch("say('up'); time.sleep(100)", nproc=1)
    finally:
        signal.signal(signal.SIGHUP, ours)
    stopped.await_files("up")
    stopped.process.send_signal(signal.SIGHUP)
    assert stopped.end()[0] == 129
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        outlives = launch("say('up-again'); time.sleep(0.5)", nproc=1)
    finally:
        signal.signal(signal.SIGHUP, before)
    outlives.await_files("up-again")
    outlives.process.send_signal(signal.SIGHUP)
    assert outlives.end()[0] == 0


def test_a_rank_that_finished_and_then_aborts_counts_as_success(launch: Launch) -> None:
    job = launch(
        "from perdure.progress import Phase\nr = page_record(); r.claim(rank=rank, step=9); r.enter(Phase.FINISHED)\n"
        "if rank == 0: os.abort()",
        bare=False,
    )
    code, _, err = job.end()
    assert code == 0
    assert "rank 0 was killed by SIGABRT after step 9 (it had finished before; this counts as success)" in err
    assert fact(job, JobSucceeded).attempts == 1


def test_a_killed_guard_is_replaced(launch: Launch) -> None:
    job = launch("say(f'up-{rank}'); time.sleep(100)", nproc=1)
    job.await_files("up-0")
    guards = _guards_of(job)
    os.kill(guards[0], signal.SIGKILL)
    give_up = time.monotonic() + 5
    while not (now := _guards_of(job)) or now == guards:
        assert time.monotonic() < give_up
        time.sleep(0.02)
    job.process.kill()
    while job.alive():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def _guards_of(job) -> list[int]:
    run_mark = job.marks()[0].split(".")[0].encode()
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")[-2:-1] == [run_mark]:
                found.append(int(name))
        except OSError:
            pass
    return found


def test_a_launcher_whose_output_nobody_reads_still_runs_the_job(launch: Launch) -> None:
    job = launch("for i in range(2000): print('x' * 100)\nsay('done')", nproc=1)
    assert job.process.stdout is not None
    job.process.stdout.close()
    job.await_files("done")
    assert job.process.wait(timeout=10) == 0


GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
say(f"reduced-{attempt}-{rank}-{int(one.item())}")
if attempt == 0 and rank == 1: os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(one)
dist.destroy_process_group()
"""


def test_a_gloo_group_forms_again_after_a_rank_was_killed(launch: Launch) -> None:
    pytest.importorskip("torch")
    job = launch(GLOO, nproc=2, bare=False)
    code, _, err = job.end(within_s=60)
    assert code == 0, err
    job.await_files("reduced-0-1-2", "reduced-1-0-2", "reduced-1-1-2")

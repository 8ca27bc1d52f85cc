"""Who says how a job has ended, and who ends it when its batch script is gone, with stand-ins for Slurm's commands."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from perdure.adapters.slurm.ending import OUTCOME, leave, note_outcome, outcome
from perdure.adapters.slurm.follow import follow
from perdure.adapters.slurm.step import STARTER, ask
from perdure.errors import CallError, TryAgain


class _Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def _commands(folder: Path, **bodies: str) -> dict[str, str]:
    """An environment with commands that note how they were called and then do what ``bodies`` say."""
    for name, body in bodies.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >>{folder}/calls\n{body}\n')
        program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def _calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("codes", [(0, 1), (75, 0, 64), (143, 75, 130, 0)])
def test_the_first_launcher_that_knows_the_outcome_is_believed(codes: tuple[int, ...], tmp_path: Path) -> None:
    for code in codes:
        note_outcome(code, file=tmp_path / "7.outcome")

    assert outcome(tmp_path / "7.outcome") == next(code for code in codes if code not in (75, 130, 143))
    assert [file.name for file in tmp_path.iterdir()] == ["7.outcome"]


@pytest.mark.parametrize("code", [75, 130, 143])
def test_a_launcher_that_was_cut_off_or_stopped_knows_no_outcome(code: int, tmp_path: Path) -> None:
    note_outcome(code, file=tmp_path / "7.outcome")
    assert outcome(tmp_path / "7.outcome") is None


def test_nothing_is_asked_of_slurm_while_the_batch_script_lives(tmp_path: Path) -> None:
    env = _commands(tmp_path, scontrol="", scancel="")
    with socket.create_server(("127.0.0.1", 0)) as sign:
        leave(7, env=env | {OUTCOME: "file", STARTER: f"127.0.0.1:{sign.getsockname()[1]}"}, say=print, clock=_Clock())
    assert _calls(tmp_path) == []


@pytest.mark.parametrize(
    ("shown", "calls"),
    [
        ("JobState=RUNNING Requeue=1", ["scontrol requeue 7"]),
        ("JobState=RUNNING Requeue=0", ["scancel 7"]),
        ("JobState=COMPLETING Requeue=1", []),
        ("JobState=PENDING Requeue=1", []),
    ],
)
def test_a_job_without_its_batch_script_is_handed_back_once(shown: str, calls: list[str], tmp_path: Path) -> None:
    env = _commands(tmp_path, scontrol=f"echo {shown}", scancel="")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    leave(7, env=env | {OUTCOME: "file", STARTER: address}, say=print, clock=_Clock())
    assert [call for call in _calls(tmp_path) if "show" not in call] == calls


def test_a_launcher_that_comes_too_late_to_hand_the_job_back_says_so_and_cancels_nothing(tmp_path: Path) -> None:
    scontrol = "case $1 in requeue) echo Job is pending >&2; exit 1;; esac; echo JobState=RUNNING Requeue=1"
    env = _commands(tmp_path, scontrol=scontrol, scancel="")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    said: list[str] = []
    leave(7, env=env | {OUTCOME: "file", STARTER: address}, say=said.append, clock=_Clock())
    assert "Job is pending" in said[-1]
    assert not any(call.startswith("scancel") for call in _calls(tmp_path))


def test_who_waits_lifts_the_hold_of_a_requeued_job_and_returns_its_code(tmp_path: Path) -> None:
    shows = (
        "JobState=PENDING Reason=BeginTime Restarts=0 ExitCode=0:0",  # --begin: not for us to lift
        "JobState=RUNNING Reason=None Restarts=0 ExitCode=0:0",
        "JobState=PENDING Reason=BeginTime Restarts=1 ExitCode=0:0",
        "JobState=FAILED Reason=NonZeroExitCode Restarts=1 ExitCode=64:0",
    )
    (tmp_path / "shows").write_text("\n".join(shows) + "\n")
    show = f"case $1 in update) exit 0;; esac; head -n 1 {tmp_path}/shows; sed -i 1d {tmp_path}/shows"
    env = _commands(tmp_path, scontrol=show)

    assert follow(7, env=env, say=print, clock=_Clock()) == 64
    assert [call for call in _calls(tmp_path) if "update" in call] == ["scontrol update JobId=7 StartTime=now"]


def test_who_waits_is_patient_with_slurm_but_not_for_ever(tmp_path: Path) -> None:
    clock = _Clock()
    with pytest.raises(TryAgain, match="Unable to contact"):
        follow(7, env=_commands(tmp_path, scontrol="echo Unable to contact >&2; exit 1"), say=print, clock=clock)
    assert clock.now > 600


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="no scontrol"):
        ask("scontrol", "ping", env={"PATH": str(tmp_path)})

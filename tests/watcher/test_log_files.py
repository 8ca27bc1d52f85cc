"""Logs of a folder by the names that launchers give them, and which of them falls silent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.errors import CallError
from perdure.watcher.log_pulse import LogPulse, Writer
from perdure.watcher.logs.files import logs_in
from perdure.watcher.samples import Looks


def write(folder: Path, *names: str, at_s: float | None = None) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
        if at_s is not None:
            os.utime(path, (at_s, at_s))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-3.log", 3), ("train_rank12.out", 12), ("node1.rank-3.err", 3), ("slurm-123_4.out", 4),
        ("slurm-123.out", None), ("7.log", 7), ("worker-2.log", 2), ("train.log", None),
        ("run/attempt_0/5/stderr.log", 5),
        ("attempt-1/rank-6.log", 6), ("frank.log", None),
    ],
)  # fmt: skip
def test_a_name_tells_the_rank(tmp_path: Path, name: str, rank: int | None) -> None:
    write(tmp_path, name)
    (found,) = logs_in(tmp_path)
    assert (found.path, found.rank) == (tmp_path / name, rank)


def test_only_logs_of_the_newest_attempt_and_start_are_followed(tmp_path: Path) -> None:
    write(tmp_path, "old_x/attempt_0/0/stdout.log", at_s=1000.0)
    write(
        tmp_path, "new_y/attempt_0/0/stdout.log", "new_y/attempt_1/0/stdout.log", "model.pt", "train.log", "train.log.1"
    )
    (tmp_path / "link.log").symlink_to("train.log")
    os.utime(tmp_path / "old_x/attempt_0", (900.0, 900.0))
    found = {str(each.path.relative_to(tmp_path)) for each in logs_in(tmp_path)}
    assert "new_y/attempt_1/0/stdout.log" in found
    assert len(found) == 2  # and train.log under one of its names
    with pytest.raises(CallError):
        logs_in(tmp_path / "nothing")


def test_the_same_local_rank_of_two_nodes_is_no_rank(tmp_path: Path) -> None:
    write(tmp_path, "job_a/attempt_0/0/stdout.log", "job_b/attempt_0/0/stdout.log")
    for name in "ab":
        os.utime(tmp_path / f"job_{name}/attempt_0", (900.0, 900.0))
    assert [each.rank for each in logs_in(tmp_path)] == [None, None]


def pulse_of(n: int, *, seconds: float, writes: dict[int, float]) -> list[tuple[int, ...]]:
    """Ranks 0 to n that write each second, some only until then; whom is suspected in the end."""
    pulse, found = LogPulse(floor_s=10.0), []
    for second in range(int(seconds)):
        now = {rank: Writer(rank, f"{rank}.log") for rank in range(n) if second <= writes.get(rank, seconds)}
        pulse.wrote(now, now_s=float(second))
        found = list(pulse.feed(Looks(), now_s=float(second)))
    return [each.ranks for each in found]


def test_who_is_silent_while_others_go_on_is_suspected_and_nobody_when_all_are() -> None:
    assert pulse_of(4, seconds=60, writes={}) == []
    assert pulse_of(4, seconds=60, writes={2: 40}) == [(2,)]
    assert pulse_of(4, seconds=60, writes={2: 52}) == []
    assert pulse_of(4, seconds=60, writes={2: 2}) == []  # it was never one that writes regularly
    assert pulse_of(8, seconds=60, writes=dict.fromkeys(range(4), 40)) == []  # half of them: it is not theirs
    assert pulse_of(3, seconds=60, writes={0: 40, 1: 40, 2: 40}) == [()]

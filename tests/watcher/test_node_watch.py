"""What a node looks at beside its ranks: the logs of ranks, and the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.watcher.node_watch import NodeWatch
from perdure.watcher.samples import LogLine, RankSample


def test_new_lines_of_ranks_and_of_the_kernel_are_in_the_look(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log, kernel = tmp_path / "logs" / "rank-3.log", tmp_path / "kern.log"
    log.write_text("of the attempt before\n")
    kernel.write_text("before\n")
    watch = NodeWatch(tmp_path / "vitals", node="a", logs=tmp_path / "logs", kernel_log=kernel)
    try:
        assert watch.look().lines == ()
        with log.open("a") as file:
            file.write("ValueError: no\n")
        with kernel.open("a") as file:
            file.write("Feb 23 16:24:18 a kernel: [ 12.567890] NVRM: Xid (PCI:0000:9b:00): 79, pid=1\n")
        beside = LogLine(text="read beside", at_s=0.0)
        lines = watch.look(lines=[beside]).lines
    finally:
        watch.close()
    assert [(each.text, each.rank, each.source, each.node) for each in lines[:-1]] == [
        ("NVRM: Xid (PCI:0000:9b:00): 79, pid=1", None, "kernel", "a"),
        ("ValueError: no", 3, "rank", "a"),
    ]
    assert lines[-1] == beside


def test_a_kernel_log_that_cannot_be_read_is_no_trouble(tmp_path: Path) -> None:
    watch = NodeWatch(tmp_path, node="a", kernel_log=tmp_path / "none")
    assert watch.look().lines == ()
    watch.close()


def test_ranks_of_one_restart_that_show_in_different_looks_are_one_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[tuple[int, ...]] = [(1, 2, 3), (11, 2, 3), (11, 12, 3), (11, 12, 13), (11, 12, 13), (11, 22, 13)]
    watch = NodeWatch(tmp_path, node="a", kernel_log=tmp_path / "none")
    seen = iter(pids)

    def ranks(**_: object) -> tuple[RankSample, ...]:
        return tuple(
            RankSample(rank=rank, node="a", at_s=0.0, pid=2**30 + pid) for rank, pid in enumerate(next(seen))
        )  # fmt: skip

    monkeypatch.setattr(watch._reading, "look", ranks)
    try:
        assert [watch.look().attempt for _ in pids] == [0, 1, 1, 1, 1, 2]
    finally:
        watch.close()
